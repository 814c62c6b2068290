"""Convolutions of integers on a CPU, by every instruction for sums of products, against exact sums."""

from __future__ import annotations

import re
from itertools import product
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import tvm

from tests.schedules.cases.integers import EXACT
from tests.schedules.cases.layers import SHAPES, layer
from tests.schedules.kernels_here import HERE, check_packed, result, run
from tests.shared.sparing import pairs, sparing
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED, STORAGE_TYPES
from tvmconv.targets import dot_instruction, resolve_target
from tvmconv.testing import check_result, random_configs, random_operands
from tvmconv.testing.factors import DATA


class Family(NamedTuple):
    """A kind of CPU, and how its instruction is written in assembly."""

    target: dict[str, Any]
    instruction: str
    feature: str | None
    """The feature that a CPU has to have to run it; None for one that none of this architecture has."""


ARM = "aarch64-linux-gnu"
FAMILIES = {
    "avx512-vnni": Family({"mcpu": "cooperlake"}, r"vpdpbusd\s.*zmm", "avx512vnni"),
    "avx-vnni": Family({"mcpu": "alderlake"}, r"vpdpbusd\s.*ymm", "avxvnni"),
    "avx512bw": Family({"mcpu": "skylake-avx512"}, r"vpmaddwd\s.*zmm", "avx512bw"),
    "avx2": Family({"mcpu": "haswell"}, r"vpmaddwd\s.*ymm", "avx2"),
    "sse2": Family({"mcpu": "x86-64"}, r"pmaddwd\s.*xmm", "sse2"),
    "i8mm": Family({"mtriple": ARM, "mcpu": "neoverse-v1"}, r"(us|s)dot\s+v\d+\.4s", None),
    "dotprod": Family({"mtriple": ARM, "mcpu": "neoverse-n1"}, r"\ssdot\s+v\d+\.4s", None),
    "bf16": Family({"mcpu": "cooperlake"}, r"vdpbf16ps\s.*zmm", "avx512bf16"),
    "neon": Family({"mtriple": ARM, "mcpu": "generic"}, r"smlal2?\s+v\d+\.4s", None),
}


BF16 = pytest.mark.skipif(dot_instruction(HERE, "bfloat16") is None, reason="this CPU has no AVX512_BF16")


def in_blocks(workload: ConvWorkload, read: int, written: int) -> ConvWorkload:
    layout, out_layout = (f"NCHW{block}c" if block > 1 else "NCHW" for block in (read, written))
    return msgspec.structs.replace(workload, layout=layout, out_layout=out_layout)


def types(name: str) -> tuple[str, ...]:
    return ("bfloat16",) if name == "bf16" else QUANTIZED


@pytest.mark.parametrize(
    ("name", "dtype"),
    sparing(
        [(name, dtype) for name in FAMILIES for dtype in types(name)],
        lambda index: index in (0, 1, 3, 4, 7, 8, 11, 13, 14, 15),  # each instruction once, both of AVX-512's ways
    ),
    ids=lambda value: value,
)
def test_instructions(name: str, dtype: str) -> None:
    """Check that a target has its instruction for each sum of a tile, and that this machine computes with it."""
    family = FAMILIES[name]
    target = resolve_target({"kind": "llvm", **family.target})
    instruction = dot_instruction(target, dtype)
    assert instruction is not None
    workload = ConvWorkload.conv2d((1, 32, 6, 7), (48, 32, 3, 3), dtype=dtype)
    if dtype in QUANTIZED:
        workload = msgspec.structs.replace(workload, x_zero_point=5)
    workload = in_blocks(workload, 16, instruction.lanes)
    selection = select(Problem(workload), target)
    kernel = build_kernel(Problem(workload), selection, target).executable
    assembly = kernel.mod.inspect_source("asm")
    assert len(re.findall(family.instruction, assembly)) >= selection.config.vectors * selection.config.outputs
    if family.feature and tvm.target.codegen.target_has_features(family.feature, HERE):
        run("dot", workload, target=target)


def test_no_instruction_saturates() -> None:
    """A sum of two products past 2^15, which `pmaddubsw` would cut off, is exact on every x86."""
    workload = ConvWorkload.conv2d((1, 8, 4, 4), (16, 8, 1, 1), dtype="uint8")
    operands = random_operands(workload)
    operands["x"][:], operands["w"][:] = 255, 127
    for family in ("avx512-vnni", "avx2"):
        if tvm.target.codegen.target_has_features(FAMILIES[family].feature, HERE):
            target = resolve_target({"kind": "llvm", **FAMILIES[family].target})
            assert (result("dot", workload, operands, target=target) == 8 * 255 * 127).all()


@pytest.mark.parametrize(
    ("out_dtype", "dtype"),
    sparing(product(STORAGE_TYPES, QUANTIZED), lambda index: index % 4 in (0, 3)),  # each output once
)
def test_types_of_outputs(dtype: str, out_dtype: str) -> None:
    """No size is a multiple of another, and zero points are the extreme ones."""
    low, high = STORAGE_TYPES[dtype].bounds or (0, 0)
    options: dict[str, Any] = {"x_zero_point": high if out_dtype in ("int8", "float32") else low}
    if out_dtype in QUANTIZED:
        options["out_zero_point"] = (STORAGE_TYPES[out_dtype].bounds or (0, 0))[0] + 5
    if out_dtype != "int32":
        options |= {"scale": True, "shift": True, "residual": True, "activation": "relu"}
    run("dot", ConvWorkload.conv2d((2, 19, 11, 9), (35, 19, 3, 3), dtype=dtype, out_dtype=out_dtype, **options))


LAYOUTS = ("NCHW", "NCHW"), ("NCHW16c", "NCHW16c"), ("NCHW", "NCHW16c"), ("NCHW4c", "NHWC"), ("NHWC", "NHWC")


@pytest.mark.skipif(dot_instruction(HERE, "int8").lanes != 16, reason="blocks of 16 are those of AVX-512")  # type: ignore[union-attr]
@pytest.mark.parametrize(
    ("shape", "layouts", "number"),
    sparing(pairs(SHAPES, LAYOUTS), lambda index: index % 6 == 0 or index == 25),  # all shapes, and all layouts
    ids=str,
)
def test_layouts(shape: str, layouts: tuple[str, str], number: int) -> None:
    x, w, options = SHAPES[shape]
    dtype = (*QUANTIZED, "bfloat16")[number % (3 if dot_instruction(HERE, "bfloat16") else 2)]
    if dtype in QUANTIZED:
        options = {"out_dtype": QUANTIZED[number % 2], "scale": True, "x_zero_point": 3, **options}
    workload = layer(x, w, layouts, dtype=dtype, **options)
    run("dot", workload)
    (config,) = random_configs(workload, HERE, 1, "dot")
    run("dot", workload, config=config)


GROUPS = {
    "few-channels": ((1, 6, 9, 9), (8, 3, 3, 3), 2),
    "whole-instructions": ((2, 32, 5, 6), (48, 8, 3, 3), 4),
    "ragged": ((3, 20, 1, 1), (260, 5, 3, 3), 4),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    sparing(product(GROUPS, QUANTIZED), lambda index: index % 4 in (0, 3)),  # each case once
)
def test_groups(name: str, dtype: str) -> None:
    """The last byte of a row of single pixels was once stored as four, by LLVM 22."""
    x, w, groups = GROUPS[name]
    for zero_point in (0, 2):
        options = {"out_dtype": "uint8", "out_zero_point": zero_point, "scale": True, "x_zero_point": 9}
        run("dot", ConvWorkload.conv2d(x, w, groups=groups, padding=1, dtype=dtype, **options))


@pytest.mark.parametrize("name", EXACT)
def test_exact_results(name: str) -> None:
    problem, operands, expected = EXACT[name]()
    shape, dtype = problem.workload.operands["output"]
    got = result("dot", problem.workload, {**operands, "output": np.zeros(shape, dtype)})
    np.testing.assert_array_equal(got, expected)


DEPTHWISE: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((1, 16, 13, 11), (16, 1, 3, 3), {}),
    "stride": ((1, 32, 12, 15), (32, 1, 5, 5), {"stride": 2}),
    "past-float32": ((1, 16, 30, 26), (16, 1, 24, 23), {}),
}


@pytest.mark.parametrize(
    ("name", "block", "dtype"),
    sparing(product(DEPTHWISE, (1, 16), QUANTIZED), lambda index: index % 4 in (0, 3)),  # two of each
)
def test_depthwise(name: str, block: int, dtype: str) -> None:
    x, w, options = DEPTHWISE[name]
    shape = (x[1], *w[1:])
    groups = {"groups": x[1], "dtype": dtype, "x_zero_point": 7, **options}
    run("depthwise", in_blocks(ConvWorkload.conv2d(x, shape, **groups), block, block))
    out = {"out_dtype": "int8", "out_zero_point": -3, "scale": True, "shift": True, "activation": "relu6"}
    workload = in_blocks(ConvWorkload.conv2d(x, shape, **groups, **out), block, block)
    run("depthwise", workload)
    (config,) = random_configs(workload, HERE, 1, "depthwise")
    run("depthwise", workload, config=config)


def test_depthwise_with_largest_sums() -> None:
    """As many terms as float32 adds up exactly, and one more row of them, each the largest product."""
    for rows in (512, 513):
        workload = ConvWorkload.conv2d((1, 2, rows, 1), (2, 1, rows, 1), groups=2, dtype="uint8", padding=0)
        operands = random_operands(workload)
        operands["x"][:], operands["w"][:] = 255, -127
        operands["x"][0, 0, 0] = 254
        assert result("depthwise", workload, operands)[0, 0, 0, 0] == -127 * (255 * rows - 1)


def test_a_network_reads_what_is_laid_out_ahead() -> None:
    """The weight in its blocks and the products of the zero point are computed once, from the weight alone."""
    workload = ConvWorkload.conv2d((1, 16, 6, 6), (32, 16, 3, 3), dtype="int8", x_zero_point=4)
    instruction = dot_instruction(HERE, "int8")
    assert instruction is not None
    of_zero_point = ["int32"] if instruction.first == "uint8" else []  # else it is subtracted from the input
    assert check_packed(workload) == [instruction.second, *of_zero_point]


@BF16
def test_bfloat16_beside_infinity() -> None:
    """NaN and infinities are where float32 multiply-adds have them, and no others."""
    workload = ConvWorkload.conv2d((1, 19, 9, 9), (18, 19, 3, 3), dtype="bfloat16", shift=True)
    operands = random_operands(workload)
    operands["x"][0, 3, 4, 4], operands["x"][0, 5, 8, 0], operands["x"][0, 7, 0, 8] = np.inf, -np.inf, np.nan
    with np.errstate(invalid="ignore"):
        check_result(workload, operands, result("dot", workload, operands))


@BF16
@pytest.mark.parametrize("name", ["positive", "scattered", "with_spike"])
def test_bfloat16_of_any_size(name: str) -> None:
    workload = ConvWorkload.conv2d((1, 12, 10, 10), (16, 12, 3, 3), dtype="bfloat16")
    operands = random_operands(workload)
    drawn = DATA[name](np.random.default_rng(0), workload.x_shape, workload.w_shape, "bfloat16")
    for key, array in zip(("x", "w"), drawn, strict=True):
        operands[key] = array.astype(operands[key].dtype)
    check_result(workload, operands, result("dot", workload, operands))
