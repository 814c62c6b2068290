"""Rounding to bfloat16 on CPUs: by integer arithmetic on float32 bits, or a vector instruction that some CPUs have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad
from tvm.s_tir.stmt import SBlock

from tvmconv.compute.approximations import register_pure
from tvmconv.compute.substitution import CHOICE, substitute
from tvmconv.problem.dtypes import INFINITY, MAGNITUDE, STORAGE_TYPES
from tvmconv.targets import ROUNDING_INSTRUCTION, backend_of, has_rounding

NAN = 0x7FC0
"""The bits of a NaN of bfloat16."""

LEAST_ROUNDINGS = 3
"""The number of roundings inside a value from which each is stored separately: TVM builds three in 50 ms, eight in 25
s.

Measured on a Xeon with AMX, by building chains of `x * y + 1.5` in bfloat16.
"""

ARITHMETIC = (
    *(tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod, tirx.Min, tirx.Max),
    *(tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE),
)
"""The expressions of two numbers."""

ROUND = "tvmconv.bits_of_bfloat16"
"""The name of the operator that rounds a float32 number, for targets that have an instruction for vectors of them."""


def with_rounding(func: tirx.PrimFunc, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the function, for a CPU with explicit rounding of float32 to bfloat16: to nearest even, and NaN for NaN.

    TVM's own rounding repeats the rounded value four times, which its vectorizer refuses where the value has variables
    in it, and makes zero of a NaN whose bits are all ones.

    Before: `output[i] = T.Cast("bfloat16", y)`. After, with b for the bits of y, where that is no NaN:
    `output[i] = T.reinterpret("bfloat16", T.Cast("uint16", (b + 32767 + (b >> 16 & 1)) >> 16))`. With an instruction:
    `output[i] = T.reinterpret("bfloat16", tvmconv.bits_of_bfloat16(y))`.
    """
    if backend_of(target).rounds_bfloat16 or all(str(param.ty.dtype) != "bfloat16" for param in func.params):
        return func
    rounded = partial(_rounded, by_instruction=has_rounding(target))
    body = _with_wide_buffers(func.body)
    if _computes_in_bfloat16(body):  # never a kernel of a template, whose vectors TVM's pass could not make float32
        bound = func.with_body(body).with_attr("target", target)
        body = tirx.transform.BF16ComputeLegalize()(tvm.IRModule({"main": bound}))["main"].body
    if not any(loop.kind == tirx.ForKind.VECTORIZED for loop in _nodes_of(tirx.For, body)):
        body = tvm_ffi.structural_map(body, (SBlock, _with_stored_roundings))
    return func.with_body(tvm_ffi.structural_map(body, (tirx.Cast, rounded)))


def _computes_in_bfloat16(body: tirx.Stmt) -> bool:
    """Return whether a number that is rounded depends on sums, comparisons or functions of numbers of bfloat16."""
    rounded = [cast.value for cast in _nodes_of(tirx.Cast, body) if _types(cast) == ("float32", "bfloat16")]
    numbers = [each for value in rounded for node in _nodes_of(ARITHMETIC, value) for each in (node.a, node.b)]
    calls = [call for value in rounded for call in _nodes_of(tvm.ir.Call, value) if not _is_choice(call)]
    numbers += [each for call in calls for each in call.args]
    return any(str(getattr(each.ty, "dtype", "")) == "bfloat16" for each in numbers)


def _with_wide_buffers(body: tirx.Stmt) -> tirx.Stmt:
    """Return a statement whose allocated buffers of bfloat16 are of float32, as TVM makes them on a CPU.

    TVM overlooks loads of these buffers inside a rounded value.

    Before: `near = T.alloc_buffer(..., "bfloat16")`, `near[i] = x[i]`, `T.Cast("float32", near[i]) + y`.
    After: `near = T.alloc_buffer(..., "float32")`, `near[i] = T.Cast("float32", x[i])`, `near[i] + y`.
    """
    wide: dict[tvm.ir.Var, tvm.ir.Var] = {}

    def widen(block: SBlock) -> None:
        for buffer in block.alloc_buffers:
            if str(buffer.ty.dtype) == "bfloat16":
                wide[buffer] = tirx.decl_buffer(buffer.ty.shape, "float32", buffer.name, scope=buffer.scope())

    tvm_ffi.structural_walk(body, [(SBlock, widen)])
    if not wide:
        return body

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if store.buffer not in wide:
            return store
        return tirx.BufferStore(wide[store.buffer], store.value.astype("float32"), store.indices)

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        return wide[load.source][tuple(load.indices)].astype("bfloat16") if load.source in wide else load

    def as_it_is(cast: tirx.Cast) -> tirx.PrimExpr:
        is_load = isinstance(cast.value, tirx.Cast) and isinstance(cast.value.value, TensorLoad)
        return cast.value.value if is_load and cast.value.value.source in wide.values() else cast

    accesses = [(tirx.BufferStore, stored), (TensorLoad, loaded), (tirx.Cast, as_it_is)]
    return substitute(tvm_ffi.structural_map(body, accesses), wide)  # in the regions of blocks


def _with_stored_roundings(block: SBlock) -> SBlock:
    """Return a block that stores each rounded number in an array of one element before it is used further.

    Where roundings are nested, TVM's simplifier takes some five times as long for each further level: 25 s for eight.
    Others than blocks of one store, values with few roundings, and stores with a choice inside their value stay as they
    are: the lanes of a vector, or the threads of a loop in the block, would share the array.

    Before: `y[i] = T.Cast("bfloat16", T.Cast("float32", T.Cast("bfloat16", a * b)) + c)`. After, with an array
    of one element: `step[0] = T.Cast("float32", T.Cast("bfloat16", a * b))`, `y[i] = T.Cast("bfloat16", step[0] + c)`.
    """
    buffers: list[tvm.ir.Var] = []

    def stored(store: tirx.BufferStore) -> tirx.Stmt:
        steps: list[tirx.Stmt] = []

        def step(cast: tirx.Cast) -> tirx.PrimExpr:
            if not _is_rounded(cast):
                return cast
            buffers.append(tirx.decl_buffer((1,), "float32", "step", scope="local"))
            steps.append(tirx.BufferStore(buffers[-1], cast, [0]))
            return buffers[-1][0]

        value = store.value
        if sum(map(_is_rounded, _nodes_of(tirx.Cast, value))) < LEAST_ROUNDINGS or _nodes_of(tirx.Let, value):
            return store
        if _is_choice(value):
            test, *choices = value.args
            return tirx.IfThenElse(
                test, *(stored(tirx.BufferStore(store.buffer, choice, store.indices)) for choice in choices)
            )
        if any(map(_is_choice, _nodes_of(tvm.ir.Call, value))):  # a branch that is not taken must not be computed
            return store
        value = tvm_ffi.structural_map(value, (tirx.Cast, step))
        return tirx.SeqStmt([*steps, tirx.BufferStore(store.buffer, value, store.indices)])

    if not isinstance(block.body, tirx.BufferStore):
        return block
    body = stored(block.body)
    if not buffers:
        return block
    return SBlock(
        block.iter_vars,
        block.reads,
        block.writes,
        block.name_hint,
        body,
        init=block.init,
        alloc_buffers=[*block.alloc_buffers, *buffers],
        match_buffers=block.match_buffers,
        annotations=block.annotations,
    )


def _is_rounded(cast: tirx.Cast) -> bool:
    """Return whether an expression rounds a float32 number to bfloat16 and makes a float32 number of it again."""
    inner = cast.value
    is_wide = isinstance(inner, tirx.Cast) and _types(inner) == ("float32", "bfloat16")
    return is_wide and _types(cast) == ("bfloat16", "float32")


def _is_choice(value: tirx.PrimExpr) -> bool:
    return isinstance(value, tvm.ir.Call) and value.op.same_as(CHOICE)


def _nodes_of(kinds: type | Sequence[type], value: Any) -> list[Any]:
    """Return the nodes of a class, or of several, in an expression or a statement."""
    nodes: list[Any] = []
    each = kinds if isinstance(kinds, Sequence) else [kinds]
    tvm_ffi.structural_walk(value, [(kind, nodes.append) for kind in each])
    return nodes


def _rounded(cast: tirx.Cast, by_instruction: bool) -> tirx.PrimExpr:
    if _types(cast) != ("float32", "bfloat16"):
        return cast
    # TVM changes nothing inside the reinterpretation, and so would read a residual's bits as an integer.
    value = tvm_ffi.structural_map(cast.value, (tirx.Cast, _widened))
    bindings = []
    while isinstance(value, tirx.Let):  # TVM simplifies no variable of integers that has other variables in it
        bindings.append((value.var, value.value))
        value = value.body
    stored = tirx.call_intrin("uint16", ROUND, value) if by_instruction else _nearest(value)
    result = tirx.reinterpret("bfloat16", stored)
    for variable, bound in reversed(bindings):
        result = tirx.Let(variable, bound, result)
    return result


def _nearest(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return the bits of a float32 number, or of a vector of them, rounded to bfloat16 by arithmetic of integers."""
    lanes = value.ty.dtype.lanes
    wide, narrow = (str(tvm.DataType(name).with_lanes(lanes)) for name in ("uint32", "uint16"))
    constant = partial(_bits, dtype=wide)
    bits = tirx.Var("bits", wide)
    is_nan = (bits & constant(MAGNITUDE)) > constant(INFINITY)
    # Add half of the last bit that stays, or just less than half where that bit is 0: ties go to even.
    nearest = (bits + constant(0x7FFF) + (bits >> constant(16) & constant(1))) >> constant(16)
    stored = tirx.Select(is_nan, constant(NAN), nearest).astype(narrow)
    return tirx.Let(bits, tirx.reinterpret(wide, value), stored)


def _rounding(call: tirx.Call) -> tirx.PrimExpr:
    """Return the code for operator `ROUND` on a vector: the instruction where it takes that length, else arithmetic."""
    (value,) = call.args
    if value.ty.dtype.lanes != ROUNDING_INSTRUCTION.lanes:
        return _nearest(value)
    rounded = tirx.call_llvm_pure_intrin(call.ty.dtype, ROUNDING_INSTRUCTION.intrinsic, value)
    # The intrinsic returns numbers of bfloat16, whose bits are read as integers here.
    return tirx.reinterpret(call.ty.dtype, tirx.reinterpret(f"int16x{ROUNDING_INSTRUCTION.lanes}", rounded))


def _widened(cast: tirx.Cast) -> tirx.PrimExpr:
    return _wide(cast.value) if _types(cast) == ("bfloat16", "float32") else cast


def _wide(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a number of bfloat16 as float32, by its bits; of a choice both alternatives.

    TVM makes the choice itself float32, which has no 16 bits to read. For CPUs without AVX-512 LLVM crashes on the bits
    of a constant among the alternatives of a vector.
    """
    if isinstance(value, tirx.FloatImm):
        return tirx.const(float(STORAGE_TYPES["bfloat16"].numpy.type(value.value)), "float32")
    if _is_choice(value):
        condition, *choices = value.args
        return tirx.if_then_else(condition, *map(_wide, choices))
    if isinstance(value, tirx.Select):
        return tirx.Select(value.condition, _wide(value.true_value), _wide(value.false_value))
    return tirx.reinterpret("float32", tirx.reinterpret("uint16", value).astype("uint32") << _bits(16))


def _types(cast: tirx.Cast) -> tuple[str, str]:
    return str(cast.value.ty.dtype), str(cast.ty.dtype)


def _bits(value: int, dtype: str = "uint32") -> tirx.PrimExpr:
    return tirx.const(value, dtype)


register_pure(ROUND)
tirx.register_intrin_lowering(ROUND, target="default", f=_rounding)
