"""Tensor intrinsics that add the products of a few terms to each lane of a vector, by one instruction of the target."""

from __future__ import annotations

from functools import cache

from tvm import tirx
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from tvmconv.compute.dense.dot import as_factor, as_term
from tvmconv.targets import DotInstruction

from ..vector_code import description, implementation

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
    described = _description(instruction, dtype)
    TensorIntrin.register(name, described, _implementation(instruction, described, dtype))
    return name


def _description(instruction: DotInstruction, dtype: str) -> PrimFunc:
    """Return what the instruction does in plain loops."""
    lanes, terms, sums = instruction.lanes, instruction.terms, instruction.sums

    a = _operand("a", (terms,), dtype)
    b = _operand("b", (lanes, terms), instruction.second)
    c = _operand("c", (lanes,), sums)

    def element(i: tirx.Var, j: tirx.Var) -> tuple[tuple[tirx.Var], tirx.PrimExpr]:
        first = as_term(as_factor(a[j], dtype, instruction.first, 0), instruction.first, sums)
        return (i,), c[i] + first * as_term(b[i, j], instruction.second, sums)

    return description((a, b, c), (lanes, terms), "SR", element)


def _operand(name: str, shape: tuple[int, ...], dtype: str) -> tirx.Buffer:
    return tirx.decl_buffer(shape, dtype, name, data_alignment=1, offset_factor=1)


def _implementation(instruction: DotInstruction, described: PrimFunc, dtype: str) -> PrimFunc:
    """Return the intrinsic's code: the instruction, with its first factor in all lanes."""
    a, b, c = described.params
    lanes, terms = instruction.lanes, instruction.terms
    sums, second = (
        c.vload([0], f"{instruction.sums}x{lanes}"),
        b.vload([0, 0], f"{instruction.second}x{lanes * terms}"),
    )
    first = a.vload([0], f"{dtype}x{terms}")
    bits = tirx.reinterpret("int32", first)
    if instruction.sums == "float32":
        result = tirx.call_pure_extern(sums.ty.dtype, BFLOAT16, sums, bits, second)
        return implementation(described, c.vstore([0], result))
    if dtype != instruction.first:
        bits = bits ^ tirx.const(SIGNS, "int32")
    first = tirx.reinterpret(f"{instruction.first}x{lanes * terms}", tirx.Broadcast(bits, lanes))
    operands = (sums, first, second) if instruction.adds else (first, second)
    result = tirx.call_llvm_pure_intrin(sums.ty.dtype, instruction.intrinsic, *operands)
    return implementation(described, c.vstore([0], result if instruction.adds else sums + result))


@cache
def columns_intrinsic(instruction: DotInstruction) -> str:
    """Return the name of the intrinsic that takes neighbouring columns, each of them a channel for each lane."""
    name = f"tvmconv_columns_{instruction.intrinsic}_{instruction.lanes}"
    lanes, terms, sums = instruction.lanes, instruction.terms, instruction.sums

    a = _operand("a", (terms, lanes), instruction.first)
    b = _operand("b", (lanes, terms), instruction.second)
    c = _operand("c", (lanes,), sums)

    def element(i: tirx.Var, j: tirx.Var) -> tuple[tuple[tirx.Var], tirx.PrimExpr]:
        return (i,), c[i] + as_term(a[j, i], instruction.first, sums) * as_term(b[i, j], instruction.second, sums)

    described = description((a, b, c), (lanes, terms), "SR", element)
    a, b, c = described.params
    factors = lanes * terms
    columns = a.vload([0, 0], f"{instruction.first}x{factors}")
    in_lanes = tirx.Shuffle([columns], [column * lanes + lane for lane in range(lanes) for column in range(terms)])
    total = c.vload([0], f"{sums}x{lanes}")
    operands = total, in_lanes, b.vload([0, 0], f"{instruction.second}x{factors}")
    result = tirx.call_llvm_pure_intrin(total.ty.dtype, instruction.intrinsic, *operands)
    TensorIntrin.register(name, described, implementation(described, c.vstore([0], result)))
    return name
