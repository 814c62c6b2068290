"""Tensor intrinsics that add the products of a few terms to each lane of a vector, by one instruction of the target."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.s_tir.stmt import SBlock, SBlockRealize
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx import PrimFunc

from tvmconv.compute.dot import as_factor
from tvmconv.targets import DotInstruction

SIGNS = -0x7F7F7F80
"""The sign bits of four bytes."""


@cache
def dot_intrinsic(instruction: DotInstruction, dtype: str) -> str:
    """Return the name of the intrinsic for a vector of an instruction, whose first factor is of elements of a type.

    They are those of the instruction's own type, or those of x.
    """
    name = f"tvmconv_{instruction.intrinsic}_{instruction.lanes}_{dtype}"
    description = _description(instruction, dtype)
    TensorIntrin.register(name, description, _implementation(instruction, description, dtype))
    return name


def _description(instruction: DotInstruction, dtype: str) -> PrimFunc:
    """Return what the instruction does in plain loops."""
    lanes, terms, sums = instruction.lanes, instruction.terms, instruction.sums

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]  # TVM has no types for it
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (terms,), dtype, align=1, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, terms), instruction.second, align=1, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), sums, align=1, offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            for i, j in T.grid(lanes, terms):
                with T.sblock("dot"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    C[vi] = C[vi] + T.cast(as_factor(A[vj], dtype, instruction.first, 0), sums) * T.cast(
                        B[vi, vj], sums
                    )

    return description


def _implementation(instruction: DotInstruction, description: PrimFunc, dtype: str) -> PrimFunc:
    """Return the intrinsic's code: the instruction, with its first factor in all lanes."""
    a, b, c = description.params
    lanes, terms = instruction.lanes, instruction.terms
    sums, second = (
        c.vload([0], f"{instruction.sums}x{lanes}"),
        b.vload([0, 0], f"{instruction.second}x{lanes * terms}"),
    )
    first = a.vload([0], f"{dtype}x{terms}")
    bits = tirx.reinterpret("int32", first)
    if dtype != instruction.first:
        bits = bits ^ tirx.const(SIGNS, "int32")
    first = tirx.reinterpret(f"{instruction.first}x{lanes * terms}", tirx.Broadcast(bits, lanes))
    operands = (sums, first, second) if instruction.adds else (first, second)
    result = tirx.call_llvm_pure_intrin(sums.ty.dtype, instruction.intrinsic, *operands)
    return _storing(description, result if instruction.adds else sums + result)


def _storing(description: PrimFunc, value: tirx.PrimExpr) -> PrimFunc:
    """Return the function with the store of a vector of sums in the place of its loops."""
    root = description.body.block
    body = SBlock([], root.reads, root.writes, root.name_hint, description.params[-1].vstore([0], value))
    return PrimFunc(description.params, SBlockRealize([], True, body))
