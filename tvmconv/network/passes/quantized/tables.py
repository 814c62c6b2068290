"""Functions of a single byte, such as an activation between two quantizations, as tables of their 256 results."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import mul
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Expr, PrimType, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.compute.functions import Float64
from tvmconv.lowering import OPAQUE
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.targets import LookupInstruction, lookup_instruction

from ...graph.constants import Array, constant_value
from ...graph.graph import Block, blocks_of, call_of, calls, rebind
from ...sites.formulas import NAMED
from ...sites.quantized import scaling_of

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
"""NumPy's functions for Relax's operators that are no activations."""

PLAIN = ("add", "clip", "dequantize", "maximum", "minimum", "multiply", "nn.relu", "nn.relu6", "quantize", "subtract")
"""Operators that, if they are few, take vector instructions no longer than looking up single elements in a table."""

MAX_PLAIN = 4
"""The largest number of plain operators, one after the other, for which a table does not pay."""

ENTRIES = 256
"""The bytes of a table."""

TASK_BYTES = 2**14
"""The bytes that are looked up with a table that is in registers, before it is loaded again."""

LEAST_VECTORS = 2**13
"""The number of vectors, about 10 µs of work, from which waking the threads pays."""


class NotATableError(Exception):
    """Raised for a value that is no function of a single byte."""


def use_tables(mod: tvm.IRModule, target: tvm.target.Target) -> tvm.IRModule:
    """Return the module with tables for chains of element-by-element operators from one tensor of bytes to bytes.

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
            values[var] = builder.call_te(_looked_up, function.x, relax.const(table), primfunc_name_hint="table")
    mod = rebind(builder.get(), values)
    if (instruction := lookup_instruction(target)) is not None:
        for name in {call.args[0] for call in values.values()}:
            mod[name] = _with_permutations(mod[name], instruction)
    return mod


class _Function:
    """The operators that make a variable a function of the elements of one tensor of bytes."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._steps: dict[relax.Var, str] = {}
        self.x: relax.Var | None = None
        """The tensor of bytes; None until it is found."""

    @property
    def is_costly(self) -> bool:
        """Return whether a table is faster than the operators."""
        names = list(self._steps.values())
        return len(names) > MAX_PLAIN or any(name not in PLAIN for name in names)

    def integers(self, var: relax.Expr) -> Array:
        """Return the integer that a variable has for each byte of `x`; raise `NotATableError` if it has none."""
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
        """Return the number in float32 that an expression has for each byte of `x`."""
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


def _looked_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
    """Return the stage `y[i] = table[x[i] - least]`, where least is the least number of the type of x."""
    return te.compute(x.shape, lambda *index: table[x[index].astype("int32") - _least(x)], name="table")


def _least(x: te.Tensor | Var) -> int:
    return int(np.iinfo(str(x.dtype if isinstance(x, te.Tensor) else x.ty.dtype)).min)


def _with_permutations(func: tirx.PrimFunc, instruction: LookupInstruction) -> tirx.PrimFunc:
    """Return a `_looked_up` function with vector instructions instead of its loops, which LLVM does not vectorize.

    Before: `for i, j: y[i, j] = table[x[i, j] - least]`.
    After, with 128 entries in registers: `for task, step: y[k : k + 64] = select(x' & 128, permuted(upper half, x'),
    permuted(lower half, x'))`, where `x'` is `x[k : k + 64]`, and a loop over the last elements of x.
    """
    x, table, y = func.params
    count, lanes = reduce(mul, x.ty.shape), instruction.lanes
    index = count.ty
    vectors, steps = count // lanes, tirx.const(TASK_BYTES // lanes, index.dtype)
    task, step, rest = (Var(name, index) for name in ("task", "step", "rest"))

    def indices_at(buffer: Var, offset: Expr) -> list[Expr]:
        """Return indices for an offset in memory, all on the last axis: past the end of a row, the next one follows."""
        return [*[tirx.const(0, index.dtype)] * (len(buffer.ty.shape) - 1), offset]

    def loop(var: Var, extent: Expr, body: tirx.Stmt, kind: int = tirx.ForKind.SERIAL) -> tirx.Stmt:
        return tirx.For(var, tirx.const(0, index.dtype), extent, kind, body)

    # Step 1. A task has the table in registers, and looks up some vectors
    start = (task * steps + step) * lanes
    bits = Var("bits", PrimType(f"uint8x{lanes}"))
    loaded = tirx.reinterpret(bits.ty.dtype, x.vload(indices_at(x, start), f"{x.ty.dtype}x{lanes}"))
    parts, result = _permuted(table, _least(x), instruction, bits)
    stored = y.vstore(indices_at(y, start), tirx.reinterpret(f"{y.ty.dtype}x{lanes}", result))
    one_step = tirx.SeqStmt([tirx.Bind(bits, loaded), stored])
    one_task = tirx.SeqStmt([*parts, loop(step, tirx.min(steps, vectors - task * steps), one_step)])

    # Step 2. Threads share the tasks of large tensors; fewer elements than a vector has are left
    few = isinstance(vectors, tirx.IntImm) and int(vectors) < LEAST_VECTORS
    kind = tirx.ForKind.SERIAL if few else tirx.ForKind.PARALLEL
    last = vectors * lanes + rest
    one_left = y.vstore(indices_at(y, last), table[x[tuple(indices_at(x, last))].astype("int32") - _least(x)])
    tasks = loop(task, (vectors + steps - 1) // steps, one_task, kind)
    body = tirx.SeqStmt([tasks, loop(rest, count % lanes, one_left)])
    root = SBlockRealize([], tirx.const(True), SBlock([], [], [], "root", body))
    return func.with_body(root).with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def _permuted(table: Var, least: int, instruction: LookupInstruction, bits: Var) -> tuple[list[tirx.Stmt], Expr]:
    """Return statements that load the parts of a table, and the results for a vector of bytes, whose bits are given.

    The low bits choose an entry in each part; the high bits choose between two parts, between two of these choices, and
    so on. A table for signed numbers begins with the lowest one, whose only set bit is the highest.
    """
    entries, dtype = instruction.entries, bits.ty.dtype
    statements: list[tirx.Stmt] = []

    def register(start: int, count: int) -> Var:
        """Return a register with some entries of the table, repeated as often as they fit."""
        vector = table.vload([tirx.const(start, "int32")], f"{table.ty.dtype}x{count}")
        if count < instruction.lanes:
            vector = tirx.Shuffle([vector] * (instruction.lanes // count), list(range(instruction.lanes)))
        statements.append(tirx.Bind(Var("part", PrimType(dtype)), tirx.reinterpret(dtype, vector)))
        return statements[-1].var

    def chosen(first: int, count: int) -> Expr:
        """Return the results for bytes whose bits are a number from `first` to `first + count - 1`."""
        if count > entries:
            half = count // 2
            is_upper = (bits & tirx.const(half, dtype)) != tirx.const(0, dtype)
            return tirx.Select(is_upper, chosen(first + half, half), chosen(first, half))
        start = (first - least) % ENTRIES
        if instruction.takes_two:
            low, high = (register(start + half, entries // 2) for half in (0, entries // 2))
            return tirx.call_llvm_pure_intrin(dtype, instruction.intrinsic, low, bits, high)
        last = bits & tirx.const(entries - 1, dtype)
        return tirx.call_llvm_pure_intrin(dtype, instruction.intrinsic, register(start, entries), last)

    result = chosen(0, ENTRIES)
    return statements, result
