"""Functions of a single byte, such as an activation between two quantizations, as tables of their 256 results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from tvmconv.compute.functions import Float64
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.targets import lookup_instruction

from ...graph.constants import Array, constant_value
from ...graph.graph import Block, blocks_of, call_of, calls, rebind
from ...sites.formulas import NAMED
from ...sites.quantized import scaling_of
from .lookups import looked_up, with_permutations

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "clip": np.clip,
    "divide": np.divide,
    "exp": np.exp,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negative": np.negative,
    "subtract": np.subtract,
}
"""NumPy's functions for Relax's operators that no activation is named by."""

PLAIN = ("add", "clip", "dequantize", "maximum", "minimum", "multiply", "nn.relu", "nn.relu6", "quantize", "subtract")
"""Operators that vectors compute as fast as single elements come out of a table, if there are few of them."""

MOST_PLAIN = 4
"""The largest number of plain steps, in a row, that are better computed."""


class NotATableError(Exception):
    """Raised for what is no function of one byte."""


def use_tables(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with tables for what is computed of a single byte, element by element, and quantized again.

    Before: `y = R.quantize(R.sigmoid(R.dequantize(x, s, z)), t, u)`.
    After: `y = R.call_tir(table, (x, constant))`, with `y[i] = constant[x[i]]`.
    """
    builder = relax.BlockBuilder(mod)
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if not calls(value, "quantize") or str(var.ty.dtype) not in QUANTIZED:
                continue
            function = _Function(block)
            try:
                table = function.integers(var)
            except NotATableError:
                continue
            if function.x is None or function.x.same_as(var) or not function.is_costly:
                continue
            values[var] = builder.call_te(looked_up, function.x, relax.const(table), primfunc_name_hint="table")
    mod = rebind(builder.get(), values)
    if (instruction := lookup_instruction(target)) is not None:
        for name in {call.args[0] for call in values.values()}:
            mod[name] = with_permutations(mod[name], instruction)
    return mod


class _Function:
    """A function of the elements of one tensor of bytes, which is found on the way."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._steps: dict[relax.Var, str] = {}
        self.x: relax.Var | None = None
        """The tensor of bytes."""

    @property
    def is_costly(self) -> bool:
        """Return whether a table is the faster way."""
        names = list(self._steps.values())
        return len(names) > MOST_PLAIN or any(name not in PLAIN for name in names)

    def integers(self, var: relax.Expr) -> Array:
        """Return the integers that a variable has for each byte; raise `NotATableError` where it has no such."""
        if not isinstance(var, relax.Var) or str(var.ty.dtype) not in QUANTIZED:
            raise NotATableError
        call = call_of(self._block.values.get(var), "quantize")
        scaling = scaling_of(call)
        if scaling is not None:
            before = self.x, dict(self._steps)
            try:
                numbers = self._numbers(call.args[0])
            except NotATableError:
                self.x, self._steps = before
            else:
                limits = np.iinfo(str(var.ty.dtype))
                integers = np.rint(numbers / np.float32(scaling.scale)) + scaling.zero_point
                self._steps[var] = "quantize"
                return np.asarray(np.clip(integers, limits.min, limits.max).astype(limits.dtype))
        if self.x is not None and not self.x.same_as(var):
            raise NotATableError
        self.x = var
        limits = np.iinfo(str(var.ty.dtype))
        return np.arange(limits.min, limits.max + 1).astype(limits.dtype)

    def _numbers(self, expr: relax.Expr) -> Array:
        """Return the numbers in float32 that an expression has for each byte."""
        if isinstance(expr, tirx.FloatImm | tirx.IntImm):  # a bound of a clip
            return np.asarray(expr.value, np.float32)
        value = constant_value(expr)
        if value is not None and value.size == 1:
            return value.reshape(()).astype(np.float32)
        call = self._block.values.get(expr) if isinstance(expr, relax.Var) else None
        if not isinstance(call, relax.Call) or not isinstance(call.op, tvm.ir.Op):
            raise NotATableError
        name = call.op.name.removeprefix("relax.")
        self._steps[expr] = name
        if name == "dequantize":
            if (scaling := scaling_of(call)) is None:
                raise NotATableError
            integers = self.integers(call.args[0]).astype(np.int32)
            return np.asarray((integers - scaling.zero_point).astype(np.float32) * np.float32(scaling.scale))
        row = NAMED.get(call.op.name)
        if row is None and name not in FUNCTIONS:
            raise NotATableError
        operands = [self._numbers(each) for each in call.args]
        with np.errstate(all="ignore"):
            if row is None:
                return np.asarray(FUNCTIONS[name](*operands), np.float32)
            values = (float(call.attrs.alpha),) if row.parameters else row.fixed
            exact = row.definition(Float64(), *(each.astype(np.float64) for each in operands), *values)
            return np.asarray(exact, np.float32)
