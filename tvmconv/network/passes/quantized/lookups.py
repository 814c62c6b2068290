"""Tables of bytes that are looked up with vectors on a CPU; LLVM takes their elements one by one."""

from __future__ import annotations

from functools import reduce
from operator import mul

import numpy as np
from tvm import te, tirx
from tvm.ir import Expr, PrimType, Var
from tvm.s_tir.stmt import SBlock, SBlockRealize

from tvmconv.lowering import OPAQUE
from tvmconv.targets import LookupInstruction

ENTRIES = 256
"""The bytes of a table."""

TASK_BYTES = 2**14
"""The bytes that are looked up with a table that is in registers, before it is loaded again."""

LEAST_VECTORS = 2**13
"""The number of vectors from which waking the threads pays: those of some 10 µs."""


def looked_up(x: te.Tensor, table: te.Tensor) -> te.Tensor:
    """Return the stage `y[i] = table[x[i] - least]`, where least is the least number of the type of x."""
    return te.compute(x.shape, lambda *place: table[x[place].astype("int32") - _least(x)], name="table")


def _least(x: te.Tensor | Var) -> int:
    return int(np.iinfo(str(x.dtype if isinstance(x, te.Tensor) else x.ty.dtype)).min)


def with_permutations(func: tirx.PrimFunc, instruction: LookupInstruction) -> tirx.PrimFunc:
    """Return a function that is `looked_up` with vectors in the place of its loops.

    Before: `for i, j: y[i, j] = table[x[i, j] - least]`.
    After, with 128 entries in registers: `for task, step: y[place : place + 64] = select(x' & 128, permuted(upper half,
    x'), permuted(lower half, x'))`, where `x'` is `x[place : place + 64]`, and a loop over what is left of x.
    """
    x, table, y = func.params
    count, lanes = reduce(mul, x.ty.shape), instruction.lanes
    index = count.ty
    vectors, steps = count // lanes, tirx.const(TASK_BYTES // lanes, index.dtype)
    task, step, rest = (Var(name, index) for name in ("task", "step", "rest"))

    def place(buffer: Var, last: Expr) -> list[Expr]:
        """Return indices for a place in memory: one beyond the end of a row is in the next, which is where it lies."""
        return [*[tirx.const(0, index.dtype)] * (len(buffer.ty.shape) - 1), last]

    def loop(var: Var, extent: Expr, body: tirx.Stmt, kind: int = tirx.ForKind.SERIAL) -> tirx.Stmt:
        return tirx.For(var, tirx.const(0, index.dtype), extent, kind, body)

    # Step 1. A task has the table in registers, and looks up some vectors
    start = (task * steps + step) * lanes
    bits = Var("bits", PrimType(f"uint8x{lanes}"))
    loaded = tirx.reinterpret(bits.ty.dtype, x.vload(place(x, start), f"{x.ty.dtype}x{lanes}"))
    parts, result = _permuted(table, _least(x), instruction, bits)
    stored = y.vstore(place(y, start), tirx.reinterpret(f"{y.ty.dtype}x{lanes}", result))
    one_step = tirx.SeqStmt([tirx.Bind(bits, loaded), stored])
    one_task = tirx.SeqStmt([*parts, loop(step, tirx.min(steps, vectors - task * steps), one_step)])

    # Step 2. Threads share the tasks of large tensors; fewer elements than a vector has are left
    few = isinstance(vectors, tirx.IntImm) and int(vectors) < LEAST_VECTORS
    kind = tirx.ForKind.SERIAL if few else tirx.ForKind.PARALLEL
    last = vectors * lanes + rest
    one_left = y.vstore(place(y, last), table[x[tuple(place(x, last))].astype("int32") - _least(x)])
    tasks = loop(task, (vectors + steps - 1) // steps, one_task, kind)
    body = tirx.SeqStmt([tasks, loop(rest, count % lanes, one_left)])
    root = SBlockRealize([], tirx.const(True), SBlock([], [], [], "root", body))
    return func.with_body(root).with_attrs({"op_pattern": OPAQUE, "tirx.is_scheduled": True})


def _permuted(table: Var, least: int, instruction: LookupInstruction, bits: Var) -> tuple[list[tirx.Stmt], Expr]:
    """Return statements that load the parts of a table, and the results for a vector of bytes, whose bits are given.

    Each part has a result by the last bits; the others choose between two parts, between two of these choices, and so
    on. A table for numbers with a sign begins with the one of which no bit but the first is set.
    """
    entries, dtype = instruction.entries, bits.ty.dtype
    statements: list[tirx.Stmt] = []

    def register(start: int, count: int) -> Var:
        """Return some entries, as often as they fit in a register."""
        vector = table.vload([tirx.const(start, "int32")], f"{table.ty.dtype}x{count}")
        if count < instruction.lanes:
            vector = tirx.Shuffle([vector] * (instruction.lanes // count), list(range(instruction.lanes)))
        statements.append(tirx.Bind(Var("part", PrimType(dtype)), tirx.reinterpret(dtype, vector)))
        return statements[-1].var

    def chosen(first: int, count: int) -> Expr:
        """Return the results for bytes whose bits are a number from `first` on, if there are so many of them."""
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
