"""The functions that activations are made of: as float32 expressions of TVM, and in float64 NumPy.

The expressions have nothing but additions, multiplications, divisions and comparisons in them, so that LLVM makes
vectors of them, where it calls a scalar function of the C library for each lane of its own `exp` and `erf`. CUDA code
computes the same, except for outputs in half precision, for which the hardware's functions are exact enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import erf, log
from typing import Any

import numpy as np
import tvm
import tvm_ffi
from tvm import tirx

from tvmconv.problem.activations import clip
from tvmconv.problem.epilogue import Epilogue

from . import approximations
from .approximations import LOG2_E

LN2 = log(2)
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
"""Two numbers whose sum is ln 2; the product of the first with an integer below 2**15 is exact."""

ROUNDING, ROUNDING_BITS = 1.5 * 2.0**23, 0x4B400000
"""A float32 number, and its bits: added to a number below 2**22 it leaves the nearest integer in the last bits of the
sum."""

EXP = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1)
"""The coefficients of (exp(f) - 1 - f) / f**2 for |f| <= ln(2) / 2.

They are from S. L. Moshier, Cephes Math Library 2.2, expf, 1992.
"""

EXP_RANGE, EXP2_RANGE = (-88.0, 89.0), (-127.0, 128.0)
"""The ranges of the arguments of exp and exp2: below them results are less than every normal float32 number (0 for
exp2), above them more than any float32 number."""

ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""The coefficients of erf(z) / z as a quotient of polynomials of z**2 for |z| <= 4.

They are from the Eigen library's generic erf of float.
"""

ERF_END = 3.92
"""The number from which erf is 1 in float32."""

TANH_END = 10.0
"""The number from which tanh is 1 in float32; tanh of it comes out as 1 exactly."""


def activated(epilogue: Epilogue, y: tirx.PrimExpr, to_half: bool) -> tirx.PrimExpr:
    """Apply the epilogue's activation to a float32 expression; `to_half` if the result is rounded to half precision."""
    arithmetic = Approximate() if to_half else Float32()
    # No variable for a clip: the schedules in tuning records have none.
    y = y if epilogue.row.definition is clip else arithmetic.bound(y)
    return arithmetic.with_variables(epilogue.activate(arithmetic, y, to_half))


class Float32:
    """Arithmetic of float32 expressions; values used more than once are bound to variables, so expressions stay short.

    Each further variable doubles the time of some of TVM's passes, so a value of a few operations is written out again
    instead, and LLVM and CUDA's compiler find the repetition.
    """

    def __init__(self) -> None:
        self._bindings: list[tuple[tirx.Var, tirx.PrimExpr]] = []

    def bound(self, value: tirx.PrimExpr, dtype: str = "float32") -> tirx.PrimExpr:
        """Bind a value that is used more than once to a variable, and return that."""
        variable = tirx.Var("t", dtype)
        self._bindings.append((variable, value))
        return variable

    def with_variables(self, expression: tirx.PrimExpr) -> tirx.PrimExpr:
        """Return an expression inside the definitions (`let`) of all variables that it may use."""
        for variable, value in reversed(self._bindings):
            expression = tirx.Let(variable, value, expression)
        return expression

    def exp(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        power, fraction = self._exponential(self.clip(y, *EXP_RANGE))
        return power * (fraction + 1.0)

    def expm1(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        power, fraction = self._exponential(self.clip(y, EXP_RANGE[0], None))
        return power * fraction + (power - 1.0)

    def exp2(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        y = self.bound(self.clip(y, *EXP2_RANGE))
        power, n = self._power(y)
        f = self.bound((y - n) * LN2)
        return power * (polynomial(EXP, f) * f * f + f + 1.0)

    def _exponential(self, y: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Return 2**n and exp(f) - 1 for y = n ln 2 + f in the range, n an integer and f at most half of ln 2."""
        y = self.bound(y)
        power, n = self._power(y * LOG2_E)
        f = self.bound(y - n * LN2_HIGH - n * LN2_LOW)
        return power, polynomial(EXP, f) * f * f + f

    def _power(self, y: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Return 2**n and n, the integer nearest to y."""
        # The integer is in the last bits. TVM would simplify (y + ROUNDING) - ROUNDING in float32 to y.
        n = self.bound(tirx.reinterpret("int32", y + ROUNDING) - tirx.const(ROUNDING_BITS, "int32"), "int32")
        # The exponent of a float32 number is in the bits from 23 on; that of 1.0 is 127.
        power = tirx.reinterpret("float32", (n + tirx.const(127, "int32")) << 23)
        return power, n.astype("float32")

    def erf(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        square = self.bound(y * y)
        inside = y * polynomial(ERF_NUMERATOR, square) / polynomial(ERF_DENOMINATOR, square)
        end, one = tirx.const(ERF_END, "float32"), tirx.const(1, "float32")
        return tirx.Select(y > end, one, tirx.Select(y < -end, -one, inside))

    def tanh(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        e = self.bound(self.expm1(self.clip(y, -TANH_END, TANH_END) * 2.0))
        return e / (e + 2.0)

    def clip(self, y: tirx.PrimExpr, low: float | None, high: float | None) -> tirx.PrimExpr:
        # Comparisons with the value on the left are false for NaN, so NaN passes through.
        if low is not None:
            bound = tirx.const(low, "float32")
            y = tirx.Select(y < bound, bound, y)
        if high is not None:
            bound = tirx.const(high, "float32")
            y = tirx.Select(y > bound, bound, y)
        return y

    def where_negative(self, y: tirx.PrimExpr, then: tirx.PrimExpr, otherwise: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.Select(y < tirx.const(0, "float32"), then, otherwise)


class Approximate(Float32):
    """Arithmetic of float32 expressions with the functions that a GPU has in hardware."""

    def exp(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        return approximations.exp(y)

    def exp2(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        return approximations.exp2(y)

    def abs(self, y: tirx.PrimExpr) -> tirx.PrimExpr:
        return tirx.max(y, -y)  # TVM does not lower its own for bfloat16 in CUDA

    def with_variables(self, expression: tirx.PrimExpr) -> tirx.PrimExpr:
        whole = super().with_variables(expression)
        return tvm_ffi.structural_map(whole, (tirx.Div, lambda each: approximations.quotient(each.a, each.b)))


def without_approximations(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the approximate operators of a GPU replaced by the formulas of `Float32`.

    The variables of a formula are defined after the activation's, in front of the whole expression: a definition inside
    the value of another one TVM makes twice, and refuses where the second time finds a constant.

    Before: `let t = ...: t * tvmconv.reciprocal(tvmconv.exp2(-t) + 1.0)`.
    After: `let t = ...: let n = ...: let f = ...: t * (1.0 / (... + 1.0))`, with the polynomial of `Float32.exp2`, of
    which LLVM makes vectors.
    """

    def exact(let: tirx.Let) -> tirx.Let:
        arithmetic = Float32()

        def formula(call: tirx.Call) -> tirx.PrimExpr:
            name = call.op.name if isinstance(call.op, tvm.ir.Op) else ""
            if name == approximations.RECIPROCAL:
                return 1.0 / call.args[0]
            return arithmetic.exp2(call.args[0]) if name == approximations.EXP2 else call

        body = tvm_ffi.structural_map(let.body, (tvm.ir.Call, formula))
        return tirx.Let(let.var, let.value, arithmetic.with_variables(body))

    return func.with_body(tvm_ffi.structural_map(func.body, (tirx.Let, exact)))


class Float64:
    """Arithmetic of float64 arrays of NumPy."""

    def exp(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.exp(y))

    def expm1(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.expm1(y))

    def erf(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.frompyfunc(erf, 1, 1)(y), np.float64)

    def tanh(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(np.tanh(y))

    def clip(self, y: np.ndarray, low: float | None, high: float | None) -> np.ndarray:
        y = y if low is None else np.where(y < low, low, y)
        return y if high is None else np.where(y > high, high, y)

    def where_negative(self, y: np.ndarray, then: np.ndarray, otherwise: np.ndarray) -> np.ndarray:
        return np.where(y < 0, then, otherwise)


def polynomial(coefficients: Sequence[float], x: Any) -> Any:
    """Evaluate a polynomial by Horner's scheme; the coefficients are from the highest power down."""
    highest, *others = coefficients
    value: Any = tirx.const(highest, "float32")
    for coefficient in others:
        value = value * x + coefficient
    return value
