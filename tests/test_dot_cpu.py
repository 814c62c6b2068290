"""Convolutions of integers on a CPU, by every instruction for sums of products, against exact sums."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import tvm

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.dtypes import QUANTIZED, STORAGE_TYPES
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.problem import Problem
from tvmconv.targets import dot_instruction, resolve_target
from tvmconv.testing import check_result, random_operands

HERE = resolve_target("llvm")


class Family(NamedTuple):
    """A kind of CPU, and how its instruction is written in assembly."""

    target: dict[str, Any]
    instruction: str
    feature: str | None
    """The feature that a CPU has to have to run it; None for one that none of this architecture has."""


ARM = "aarch64-linux-gnu"
FAMILIES = {
    "avx512-vnni": Family({"mcpu": "sapphirerapids"}, r"vpdpbusd\s.*zmm", "avx512vnni"),
    "avx-vnni": Family({"mcpu": "alderlake"}, r"vpdpbusd\s.*ymm", "avxvnni"),
    "avx512bw": Family({"mcpu": "skylake-avx512"}, r"vpmaddwd\s.*zmm", "avx512bw"),
    "avx2": Family({"mcpu": "haswell"}, r"vpmaddwd\s.*ymm", "avx2"),
    "sse2": Family({"mcpu": "x86-64"}, r"pmaddwd\s.*xmm", "sse2"),
    "i8mm": Family({"mtriple": ARM, "mcpu": "neoverse-v1"}, r"(us|s)dot\s+v\d+\.4s", None),
    "dotprod": Family({"mtriple": ARM, "mcpu": "neoverse-n1"}, r"\ssdot\s+v\d+\.4s", None),
    "neon": Family({"mtriple": ARM, "mcpu": "generic"}, r"smlal2?\s+v\d+\.4s", None),
}


def result(workload: ConvWorkload, operands: dict[str, np.ndarray], target: tvm.target.Target, config: Any) -> Any:
    kernel = build_kernel(Problem(workload), select(Problem(workload), target, config), target).executable
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    kernel[KERNEL_NAME](*tensors)
    return tensors[-1].numpy()


def run(workload: ConvWorkload, target: tvm.target.Target = HERE, config: Any = None) -> None:
    operands = random_operands(workload)
    check_result(workload, operands, result(workload, operands, target, config))


def of_all_types(dtype: str, out_dtype: str, **options: Any) -> ConvWorkload:
    """Return a convolution in which no size is a multiple of another, into an output of a type."""
    low, high = STORAGE_TYPES[dtype].bounds or (0, 0)
    points = {"x_zero_point": high if out_dtype in ("int8", "float32") else low + 3}
    if out_dtype in QUANTIZED:
        points["out_zero_point"] = (STORAGE_TYPES[out_dtype].bounds or (0, 0))[0] + 5
    epilogue = {} if out_dtype == "int32" else {"scale": True, "shift": True, "residual": True, "activation": "relu"}
    shapes = (2, 19, 11, 9), (35, 19, 3, 3)
    return ConvWorkload.conv2d(*shapes, dtype=dtype, out_dtype=out_dtype, **points, **epilogue, **options)


def in_blocks(workload: ConvWorkload, read: int, written: int) -> ConvWorkload:
    layout, out_layout = (f"NCHW{block}c" if block > 1 else "NCHW" for block in (read, written))
    return msgspec.structs.replace(workload, layout=layout, out_layout=out_layout)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_instructions(family: Family, dtype: str) -> None:
    """Check that a target has its instruction in the loop, and that this machine computes with it where it can."""
    target = resolve_target({"kind": "llvm", **family.target})
    instruction = dot_instruction(target, dtype)
    assert instruction is not None
    workload = in_blocks(
        ConvWorkload.conv2d((1, 32, 6, 7), (48, 32, 3, 3), dtype=dtype, x_zero_point=5), 16, instruction.lanes
    )
    selection = select(Problem(workload), target)
    kernel = build_kernel(Problem(workload), selection, target).executable
    assembly = kernel.mod.inspect_source("asm")
    sums = selection.config.vectors * selection.config.outputs
    assert len(re.findall(family.instruction, assembly)) >= sums
    if family.feature and tvm.target.codegen.target_has_features(family.feature, HERE):
        run(workload, target)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("out_dtype", STORAGE_TYPES)
def test_types_of_outputs(dtype: str, out_dtype: str) -> None:
    run(of_all_types(dtype, out_dtype))
