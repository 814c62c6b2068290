"""Tensor intrinsics that add the products of a few terms to each lane of a vector, by one instruction of the target."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx import PrimFunc

from tvmconv.compute.dot import as_factor, as_term
from tvmconv.targets import DotInstruction

from .vector_code import implementation

BFLOAT16 = "tvmconv_dot_bfloat16"
BFLOAT16_CODE = f"""
declare <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float>, <32 x bfloat>, <32 x bfloat>)
define internal <16 x float> @{BFLOAT16}(<16 x float> %sums, i32 %bits, <32 x i16> %second)
    alwaysinline nounwind readnone "target-features"="+avx512f,+avx512bw,+avx512vl,+avx512bf16" {{
  %lane = insertelement <16 x i32> undef, i32 %bits, i32 0
  %lanes = shufflevector <16 x i32> %lane, <16 x i32> undef, <16 x i32> zeroinitializer
  %a = bitcast <16 x i32> %lanes to <32 x bfloat>
  %b = bitcast <32 x i16> %second to <32 x bfloat>
  %result = call <16 x float> @llvm.x86.avx512bf16.dpbf16ps.512(<16 x float> %sums, <32 x bfloat> %a, <32 x bfloat> %b)
  ret <16 x float> %result
}}
"""
"""A function in LLVM's language for an instruction that takes bfloat16 vectors, which TVM would make float32 ones."""

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
                    C[vi] = C[vi] + as_term(
                        as_factor(A[vj], dtype, instruction.first, 0), instruction.first, sums
                    ) * as_term(B[vi, vj], instruction.second, sums)

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
    if instruction.sums == "float32":
        result = tirx.call_pure_extern(sums.ty.dtype, BFLOAT16, sums, bits, second)
        return implementation(description, c.vstore([0], result))
    if dtype != instruction.first:
        bits = bits ^ tirx.const(SIGNS, "int32")
    first = tirx.reinterpret(f"{instruction.first}x{lanes * terms}", tirx.Broadcast(bits, lanes))
    operands = (sums, first, second) if instruction.adds else (first, second)
    result = tirx.call_llvm_pure_intrin(sums.ty.dtype, instruction.intrinsic, *operands)
    return implementation(description, c.vstore([0], result if instruction.adds else sums + result))


@cache
def columns_intrinsic(instruction: DotInstruction) -> str:
    """Return the name of the intrinsic that takes neighbouring columns, each of them a channel for each lane."""
    name = f"tvmconv_columns_{instruction.intrinsic}_{instruction.lanes}"
    lanes, terms, sums = instruction.lanes, instruction.terms, instruction.sums

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]  # TVM has no types for it
    def description(a: T.handle, b: T.handle, c: T.handle) -> None:
        A = T.match_buffer(a, (terms, lanes), instruction.first, align=1, offset_factor=1)  # noqa: N806
        B = T.match_buffer(b, (lanes, terms), instruction.second, align=1, offset_factor=1)  # noqa: N806
        C = T.match_buffer(c, (lanes,), sums, align=1, offset_factor=1)  # noqa: N806
        with T.sblock("root"):
            T.reads(C[0:lanes], A[0:terms, 0:lanes], B[0:lanes, 0:terms])
            T.writes(C[0:lanes])
            for i, j in T.grid(lanes, terms):
                with T.sblock("dot"):
                    vi, vj = T.axis.remap("SR", [i, j])
                    C[vi] = C[vi] + as_term(A[vj, vi], instruction.first, sums) * as_term(
                        B[vi, vj], instruction.second, sums
                    )

    a, b, c = description.params
    factors = lanes * terms
    columns = a.vload([0, 0], f"{instruction.first}x{factors}")
    in_lanes = tirx.Shuffle([columns], [column * lanes + lane for lane in range(lanes) for column in range(terms)])
    total = c.vload([0], f"{sums}x{lanes}")
    operands = total, in_lanes, b.vload([0, 0], f"{instruction.second}x{factors}")
    result = tirx.call_llvm_pure_intrin(total.ty.dtype, instruction.intrinsic, *operands)
    TensorIntrin.register(name, description, implementation(description, c.vstore([0], result)))
    return name
