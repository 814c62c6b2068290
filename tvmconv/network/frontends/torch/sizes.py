"""The sizes that a program of torch leaves open, as expressions of TVM, and the guards that torch put on them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import reduce
from typing import Any

import numpy as np
import sympy
import torch
from torch.utils._sympy import functions
from tvm import tirx

from ...graph.sizes import OpenSize
from ...sizes.facts import Size, SizeFacts

TORCH_LEAST = 2
"""The lower bound that torch gives to open sizes, since it makes other programs for 0 and 1."""

EXACT = 2**20
"""The largest numerator and denominator of a factor for which integers certainly give the results of float64."""

SIMPLE, TRIED = 1000, 2**22
"""The largest denominator of other factors, and the number of its multiples that are tried out."""


class TorchSizes:
    """The sizes of a program of torch as expressions of TVM.

    A size of an input that torch derives from others, such as 2*s0, has a variable of its own, and a condition.
    """

    def __init__(self, program: torch.export.ExportedProgram) -> None:
        """Read the open sizes of the program's inputs and their bounds."""
        self._of_inputs: dict[sympy.Expr, tirx.Var] = {}
        self._known: dict[sympy.Basic, Any] = {}
        placeholders = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
        tensors = [placeholders.get(name) for name in program.graph_signature.user_inputs]
        expressions = dict.fromkeys(
            size.node.expr
            for tensor in tensors
            if isinstance(tensor, torch.Tensor)
            for size in tensor.shape
            if isinstance(size, torch.SymInt) and not size.node.expr.is_Integer
        )
        open_sizes = []
        for expression in sorted(expressions, key=lambda each: not each.is_Symbol):
            name = str(expression) if expression.is_Symbol else "size_" + re.sub(r"\W+", "_", str(expression))
            var = self._of_inputs[expression] = tirx.Var(name, "int64")
            open_sizes.append(_bounded(name, expression, program.range_constraints))
            if expression.is_Symbol:
                self._known[expression] = var
            elif len(symbols := expression.free_symbols) == 1 and (symbol := next(iter(symbols))) not in self._known:
                factor, rest = _line(expression, symbol)
                self._known[symbol] = (var - rest) // factor
        self.facts = SizeFacts(open_sizes)
        """The bounds of the open sizes."""
        modes = (getattr(each, "fake_mode", None) for each in tensors)
        self._environment = next((mode.shape_env for mode in modes if mode is not None), None)

    def of_input(self, size: sympy.Expr) -> Size:
        """Return the size of an input as Relax declares it, a number or a variable."""
        return int(size) if size.is_Integer else self._of_inputs[size]

    def define(self, value: Any, expression: Any) -> None:
        """Say what a number of torch is that elements of tensors decide, such as how many are not zero."""
        if value.node.expr.is_Symbol:
            self._known.setdefault(value.node.expr, expression)

    def expression(self, value: Any) -> Any:
        """Return a size, or another number that sizes decide, as a number or an expression of TVM.

        Raises `KeyError` for one that elements of tensors decide, unless it is defined.
        """
        if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            return value
        return self._translated(value.node.expr)

    def shape(self, tensor: Any) -> list[Size]:
        """Return the shape of a tensor of torch; raise `KeyError` where elements of tensors decide on a size."""
        return [self.expression(size) for size in tensor.shape]

    def require_guards(self) -> None:
        """Require in each call the guards that torch's export has put on the sizes, beside their bounds.

        To torch each open size is at least 2, so that a test of that alone decides on no branch of a program.
        """
        for expression, var in self._of_inputs.items():
            if not expression.is_Symbol:
                self.facts.require(tirx.EQ(var, self._translated(expression)), "the input", "is derived from others")
        if self._environment is None:
            return
        for guard in self._environment.guards:
            test = self._environment.replace(guard.expr)
            if test is not sympy.true and not _is_least(test) and test.free_symbols <= self._known.keys():
                need = "made the program for such sizes alone"
                self.facts.require(self._translated(test), "torch.export", need)

    def _translated(self, expression: Any) -> Any:
        found = self._known.get(expression)
        if found is None:
            found = _number(expression)
            if found is None:
                expression_of_tvm = self._operator_of_tvm(expression)
                is_size = isinstance(expression_of_tvm, int) or str(expression_of_tvm.ty.dtype) == "int64"
                found = self.facts.simplified(expression_of_tvm) if is_size else expression_of_tvm
            self._known[expression] = found
        return found

    def _operator_of_tvm(self, expression: Any) -> Any:
        """Return the expression of TVM for one of torch that is neither a number nor a variable."""
        if isinstance(expression, ROUNDED):
            return self._rounded(expression)
        kind = next((kind for kind in OPERATORS if isinstance(expression, kind)), None)
        if kind is None:
            raise KeyError(f"{expression}, a size that elements of tensors decide")
        return OPERATORS[kind](*map(self._operand, expression.args))

    def _operand(self, expression: Any) -> Any:
        """Return an operand of an operator of TVM, which is an expression even where it is a number."""
        found = self._translated(expression)
        if isinstance(found, bool):
            return tirx.const(found, "bool")
        return tirx.const(found, "int64" if isinstance(found, int) else "float64") if _is_number(found) else found

    def _rounded(self, expression: Any) -> Any:
        """Return an integer that torch rounds a float64 to, by integers where that is certain to be the same."""
        (inner,) = expression.args
        up = isinstance(expression, functions.CeilToInt)
        ratio = None if isinstance(expression, functions.RoundToInt) else self._ratio(inner)
        if ratio is None:
            return _integer(self._operand(inner), type(expression))
        above, below = map(self._operand, ratio)
        return (above + below - 1) // below if up else above // below

    def _ratio(self, value: sympy.Expr) -> tuple[sympy.Expr, sympy.Expr] | None:
        """Return numerator and denominator, integers, of a float64 whose rounding error cannot reach an integer.

        For sizes below 2**31 that is so for a quotient of two sizes, and for a size times a fraction of few bits; for
        other fractions, such as 0.7, it is tried out, and required that the size is not larger than was tried.
        """
        if isinstance(value, functions.ToFloat):
            return value.args[0], sympy.Integer(1)
        if isinstance(value, functions.IntTrueDiv):
            above, below = value.args
            return above, below
        if not (isinstance(value, sympy.Mul) and len(value.args) == 2 and value.args[0].is_Float):
            return None
        factor, size = float(value.args[0]), value.args[1]
        if not isinstance(size, functions.ToFloat) or factor <= 0:
            return None
        exact = Fraction(factor)
        if max(exact.numerator, exact.denominator) > EXACT:
            exact = exact.limit_denominator(SIMPLE)
            multiples = np.arange(1, TRIED + 1, dtype="float64")  # of the denominator; no other size is near an integer
            if not np.array_equal(np.trunc(multiples * exact.denominator * factor), multiples * exact.numerator):
                return None
            largest = TRIED * exact.denominator
            need = f"times {factor}, is rounded, and may be at most {largest}"
            self.facts.require(self._operand(size.args[0]) <= largest, "a size that,", need)
        return size.args[0] * exact.numerator, sympy.Integer(exact.denominator)


def _bounded(name: str, expression: sympy.Expr, ranges: Any) -> OpenSize:
    """Return an open size with the bounds that a program has for it.

    To torch a size that is open is at least 2, whatever it was told, and larger lower bounds alone are meant.
    """
    smallest, largest = 1, None
    if expression in ranges:
        low, high = ranges[expression].lower, ranges[expression].upper
        smallest = int(low) if low.is_Integer and low > TORCH_LEAST else 1
        largest = int(high) if high.is_Integer else None
    return OpenSize(name, smallest, largest)


def _line(expression: sympy.Expr, symbol: sympy.Symbol) -> tuple[int, int]:
    """Return factor and constant of a size that is derived from another one; raise `ValueError` for other formulas."""
    coefficients = sympy.Poly(expression, symbol).all_coeffs()
    if len(coefficients) != 2:
        raise ValueError(f"the size {expression} is no multiple of {symbol} with a constant added")
    factor, rest = map(int, coefficients)
    return factor, rest


def _number(expression: Any) -> Any:
    if expression in (sympy.true, sympy.false):
        return bool(expression)
    if getattr(expression, "is_Integer", False):
        return int(expression)
    return float(expression) if getattr(expression, "is_Float", False) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _integer(value: tirx.Expr, rounding: type) -> tirx.Expr:
    """Return a float64 rounded to an integer in one of the ways of `ROUNDED`, without calls, which no shape takes."""
    whole = value.astype("int64")  # towards 0
    if rounding is functions.TruncToInt:
        return whole
    if rounding is functions.RoundToInt:  # to the even one of two that are equally near
        upper = _integer(value + 0.5, functions.FloorToInt)
        is_between = upper.astype("float64") - value >= 0.5
        return upper - upper % 2 * is_between.astype("int64")
    if rounding is functions.CeilToInt:
        return whole + (whole.astype("float64") < value).astype("int64")
    return whole - (value < whole.astype("float64")).astype("int64")


def _folded(operator: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *operands: reduce(operator, operands)


def _power(base: Any, exponent: Any) -> Any:
    return reduce(lambda a, b: a * b, _repeated(base, int(exponent)), tirx.const(1, base.ty.dtype))


def _repeated(base: Any, times: int) -> Iterator[Any]:
    yield from [base] * times


ROUNDED = (functions.CeilToInt, functions.FloorToInt, functions.RoundToInt, functions.TruncToInt)
"""Torch's rounding of floating-point numbers to integers."""

OPERATORS: dict[Any, Callable[..., Any]] = {
    sympy.Add: _folded(lambda a, b: a + b),
    sympy.Mul: _folded(lambda a, b: a * b),
    sympy.Pow: _power,
    sympy.Eq: tirx.EQ,
    sympy.Ne: tirx.NE,
    sympy.Lt: tirx.LT,
    sympy.Le: tirx.LE,
    sympy.Gt: tirx.GT,
    sympy.Ge: tirx.GE,
    sympy.And: _folded(tirx.And),
    sympy.Or: _folded(tirx.Or),
    sympy.Not: tirx.Not,
    functions.CeilDiv: lambda a, b: (a + b - 1) // b,
    functions.FloatPow: tirx.power,
    functions.FloatTrueDiv: lambda a, b: a / b,
    functions.FloorDiv: lambda a, b: a // b,  # CleanDiv too
    functions.Identity: lambda a: a,
    functions.IntTrueDiv: lambda a, b: a.astype("float64") / b.astype("float64"),
    functions.Max: _folded(tirx.max),
    functions.Min: _folded(tirx.min),
    functions.Mod: tirx.floormod,
    functions.ModularIndexing: lambda a, b, c: tirx.floormod(a // b, c),
    functions.PowByNatural: _power,
    functions.PythonMod: tirx.floormod,
    functions.ToFloat: lambda a: a.astype("float64"),
    functions.Where: tirx.if_then_else,
    functions.OpaqueUnaryFn_sqrt: tirx.sqrt,
}
"""TVM's operator for each of torch's; those of a list of operands are applied from left to right."""


def _is_least(test: Any) -> bool:
    """Return whether a test is that a size is no 0 or 1, in one of the forms in which torch writes it."""
    if not isinstance(test, sympy.core.relational.Relational) or len(test.free_symbols) != 1:
        return False
    (size,) = test.free_symbols
    return test.canonical in [each.canonical for each in (size > 1, size >= 2, sympy.Ne(size, 0), sympy.Ne(size, 1))]
