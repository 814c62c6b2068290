"""Depthwise convolutions of integers on a CPU, by dot products of neighbouring columns, against exact sums."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import tvmconv
from tests.schedules.kernels_here import HERE, check_packed, result
from tests.shared.sparing import every, pairs
from tvmconv import ConvWorkload
from tvmconv.compute.depthwise.dot import neighbours
from tvmconv.dispatch import select
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cpu.dot import depthwise_dot
from tvmconv.targets import dot_instruction, resolve_target
from tvmconv.testing import check_result, random_configs, random_operands

TARGET = resolve_target({"kind": "llvm", "mcpu": "cooperlake"})
RUNS = pytest.mark.skipif(
    getattr(dot_instruction(HERE, "int8"), "name", "") != "vpdpbusd" or dot_instruction(HERE, "int8").lanes != 16,  # type: ignore[union-attr]
    reason="this CPU has no AVX512_VNNI",
)


def layer(x: Any, kernel: tuple[int, int], layouts: tuple[str, str] = ("NCHW16c", "NCHW16c"), **options: Any) -> Any:
    """Return a depthwise convolution of x (N, C, H, W)."""
    workload = ConvWorkload.conv2d(x, (x[1], 1, *kernel), groups=x[1], **options)
    return msgspec.structs.replace(workload, layout=layouts[0], out_layout=layouts[1])


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, int], dict[str, Any]]] = {
    "3x3": ((2, 32, 13, 11), (3, 3), {}),
    "3x3-stride-2": ((1, 16, 12, 15), (3, 3), {"stride": 2}),
    "5x5": ((1, 32, 9, 10), (5, 5), {"padding": 2}),
    "5x5-stride-2": ((1, 16, 15, 14), (5, 5), {"stride": 2, "padding": 2}),
    "7x4": ((1, 16, 10, 9), (7, 4), {}),
    "1x1": ((1, 16, 5, 6), (1, 1), {}),
    "2x9": ((1, 16, 7, 12), (2, 9), {"stride": (1, 3)}),
    "dilated-rows": ((1, 16, 11, 8), (3, 3), {"dilation": (3, 1), "padding": "VALID"}),
    "uneven-padding": ((1, 16, 4, 5), (3, 2), {"padding": (3, 0, 1, 4)}),
    "one-pixel": ((3, 16, 1, 1), (3, 3), {"padding": 1}),
}
LAYOUTS = ("NCHW16c", "NCHW16c"), ("NHWC", "NHWC"), ("NHWC", "NCHW16c"), ("NCHW16c", "NHWC")


@RUNS
@pytest.mark.parametrize(
    ("shape", "layouts", "number"),
    every(5, pairs(SHAPES, LAYOUTS)),
    ids=str,
)
def test_shapes(shape: str, layouts: tuple[str, str], number: int) -> None:
    x, kernel, options = SHAPES[shape]
    dtype = QUANTIZED[number % 2]
    for point, out_dtype in ((0, "int32"), (7, QUANTIZED[number // 2 % 2])):
        more = {"scale": True, "shift": True, "residual": True, "activation": "relu"} if out_dtype != "int32" else {}
        workload = layer(x, kernel, layouts, dtype=dtype, x_zero_point=point, out_dtype=out_dtype, **options, **more)
        operands = random_operands(workload)
        check_result(workload, operands, result("depthwise_dot", workload, operands))
    (config,) = random_configs(workload, HERE, 1, "depthwise_dot")
    check_result(workload, operands, result("depthwise_dot", workload, operands, config))


@RUNS
def test_largest_sums() -> None:
    """Products of the largest numbers, of which four are past what an instruction that saturates would hold."""
    workload = layer((1, 16, 5, 5), (3, 3), dtype="uint8", padding=0, x_zero_point=255)
    operands = random_operands(workload)
    operands["x"][:], operands["w"][:] = 0, -128
    assert (result("depthwise_dot", workload, operands) == 9 * 255 * 128).all()


@RUNS
def test_a_network_reads_what_is_laid_out_ahead() -> None:
    """The moved weights and the products of the zero point are computed once, from the weight alone."""
    workload = layer((1, 16, 6, 6), (3, 3), dtype="int8", x_zero_point=4)
    assert check_packed(workload, "depthwise_dot") == ["int8", "int32"]


TARGETS = {
    "avx512-vnni": ({"mcpu": "cooperlake"}, r"vpdpbusd\s.*zmm"),
    "avx-vnni": ({"mcpu": "alderlake"}, r"vpdpbusd\s.*ymm"),
    "i8mm": ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v1"}, r"usdot\s+v\d+\.4s"),
    "dotprod": ({"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"}, r"\ssdot\s+v\d+\.4s"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_code(name: str) -> None:
    """The sums of a tile are in registers: each step of a kernel's row is one instruction for each of its outputs."""
    fields, written = TARGETS[name]
    target = resolve_target({"kind": "llvm", **fields})
    instruction = dot_instruction(target, "uint8")
    assert instruction is not None
    block = f"NCHW{instruction.lanes}c"
    problem = Problem(layer((1, 32, 14, 14), (3, 3), (block, block), dtype="uint8", padding=1))
    selection = select(problem, target, algorithm="depthwise_dot")
    assembly = build_kernel(problem, selection, target).executable.mod.inspect_source("asm")
    config = selection.config
    expected = depthwise_dot.unrolled(problem.workload, instruction, config)
    assert expected <= len(re.findall(written, assembly)) <= 2 * expected


@pytest.mark.parametrize(("kernel", "stride", "expected"), [(3, 1, 2), (5, 1, 4), (3, 2, 1), (5, 2, 2), (7, 2, 1)])
def test_neighbours(kernel: int, stride: int, expected: int) -> None:
    workload = layer((1, 16, 16, 16), (kernel, kernel), stride=stride, dtype="int8")
    assert neighbours(workload, 4) == expected


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (layer((1, 24, 8, 8), (3, 3), ("NHWC", "NHWC"), dtype="int8"), "takes channels in multiples of 16, not 24"),
        (layer((1, 16, 8, 8), (3, 3), ("NCHW8c", "NCHW8c"), dtype="int8"), "takes blocks of 16 channels, not 8"),
        (layer((1, 16, 8, 8), (3, 3), dilation=2, dtype="int8"), "takes windows of neighbouring columns, not 2 apart"),
        (layer((1, 16, 64, 64), (48, 48), dtype="int8"), "takes kernels that it can unroll, not of 48x48"),
        (layer((1, 16, 8, 8), (3, 3)), "takes int8 or uint8, not float32"),
    ],
    ids=["channels", "blocks", "dilation", "large", "float32"],
)
def test_obstacles(workload: ConvWorkload, why: str) -> None:
    with pytest.raises(InvalidArgumentError, match=why):
        tvmconv.compile(workload, TARGET, algorithm="depthwise_dot")
