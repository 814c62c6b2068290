"""The depthwise schedules against the float64 reference: on the CPU, and on CUDA through the serial twin and cubins."""

from __future__ import annotations

from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm

from tests.emulated.twins_and_cubins import SM_90, compiled
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.dispatch import select, template_for
from tvmconv.lowering import build, lower
from tvmconv.problem import Problem
from tvmconv.schedules.cpu import depthwise
from tvmconv.schedules.cuda.depthwise import template as cuda_depthwise
from tvmconv.targets import resolve_target
from tvmconv.testing import DEPTHWISE, Case, check_result, random_configs, random_operands, serial_twin

CPU = resolve_target("llvm")
TARGETS = {"cpu": CPU, "cuda": SM_90}


def identifier(value: Any) -> str:
    """The name of a parameter in a test's name."""
    if isinstance(value, tvm.target.Target):
        return str(value.attrs.get("arch", "cpu"))
    return str(getattr(value, "id", value))


by_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())


def run_on_cpu(func: tvm.tirx.PrimFunc, workload: ConvWorkload) -> None:
    """Build a scheduled function, as its serial twin if it is for CUDA, and check its result."""
    executable = build(tvm.IRModule({"kernel": serial_twin(func)}), CPU)
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    executable["kernel"](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


def scheduled(workload: ConvWorkload, target: tvm.target.Target, config: Any = None) -> tvm.tirx.PrimFunc:
    return lower(Problem(workload), select(Problem(workload), target, config), target, "kernel")


@pytest.mark.parametrize(
    ("case", "target"),
    sparing(product(DEPTHWISE, TARGETS.values()), lambda index: index % 16 in (0, 7)),  # one case in four
    ids=identifier,
)
def test_default_configuration(case: Case, target: tvm.target.Target) -> None:
    run_on_cpu(scheduled(case.workload, target), case.workload)


BLOCKED = {
    "3x3": ConvWorkload.depthwise((2, 24, 9, 13), (24, 1, 3, 3), shift=True, residual=True, activation="relu6"),
    "stride-2": ConvWorkload.depthwise((1, 16, 15, 14), (16, 1, 3, 3), stride=2, scale=True),
    "dilation-half": ConvWorkload.depthwise((1, 8, 12, 17), (8, 1, 5, 2), dilation=(1, 2), dtype="float16"),
}


@pytest.mark.parametrize(
    ("name", "block"),
    sparing(product(BLOCKED, (4, 8)), lambda index: index in (0, 3, 4)),  # each case once
)
def test_blocks_of_channels(name: str, block: int) -> None:
    layout = f"NCHW{block}c"
    workload = msgspec.structs.replace(BLOCKED[name], layout=layout, out_layout=layout)
    for config in (None, *random_configs(workload, CPU, 1)):
        run_on_cpu(scheduled(workload, CPU, config), workload)


@pytest.mark.parametrize("size", [7, 14, 28, 56, 112])
def test_sums_in_blocks_stay_on_the_stack(size: int) -> None:
    """TVM allocates sums of 1024 bytes: 32 channels at 112x112 then take 620 µs on Zen 5 instead of 34."""
    plain = ConvWorkload.depthwise((1, 32, size, size), (32, 1, 3, 3), padding=1)
    workload = msgspec.structs.replace(plain, layout="NCHW16c", out_layout="NCHW16c")
    chosen = depthwise.template.default_config(Problem(workload), resolve_target({"kind": "llvm", "mcpu": "znver5"}))
    assert 4 * chosen.rows * chosen.columns * chosen.vector < 1024


@pytest.mark.parametrize("mcpu", ["znver5", "haswell"])
@pytest.mark.parametrize("kernel", [3, 5, 7, 13, 31])
def test_sums_in_blocks_stay_whole_vectors(kernel: int, mcpu: str) -> None:
    """LLVM takes sums apart that a loop over taps hands on, unless their number is a power of two."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    layout = f"NCHW{16 if mcpu == 'znver5' else 8}c"
    plain = ConvWorkload.depthwise((1, 32, 28, 28), (32, 1, kernel, kernel), padding=kernel // 2)
    workload = msgspec.structs.replace(plain, layout=layout, out_layout=layout)
    chosen = depthwise.template.default_config(Problem(workload), target)
    sums = chosen.rows * chosen.columns
    assert sums.bit_count() == 1 or (chosen.unroll == 2 and sums * kernel**2 <= depthwise.UNROLLED)


@by_target
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 7, 33])
def test_the_default_is_legal(target: tvm.target.Target, size: int) -> None:
    workload = ConvWorkload.depthwise((32, 960, size, size), (960, 1, 3, 3))
    space = template_for(Problem(workload), target).space(Problem(workload), target)
    assert space.violated(space.default) == []


def test_unwritten_output_is_caught() -> None:
    workload = ConvWorkload.depthwise((1, 2, 4, 4), (2, 1, 3, 3))
    operands = random_operands(workload)
    with pytest.raises(AssertionError, match="NaN at the wrong indices"):
        check_result(workload, operands, operands["output"])


@by_target
def test_nan_and_infinity_pass_through_the_epilogue(target: tvm.target.Target) -> None:
    workload = ConvWorkload.depthwise((1, 1, 4, 40), (1, 1, 1, 1), activation="relu6")
    executable = build(tvm.IRModule({"kernel": serial_twin(scheduled(workload, target))}), CPU)
    operands = random_operands(workload)
    operands["x"][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    operands["w"][:] = 1
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    executable["kernel"](*tensors)
    assert np.isnan(tensors[-1].numpy()[0, 0, 0, 0])
    assert list(tensors[-1].numpy()[0, 0, 0, 1:3]) == [6, 0]
    check_result(workload, operands, tensors[-1].numpy())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_default_vectors(dtype: str) -> None:
    """A thread of a large default reads and writes its columns as one vector, and its kernel spills nothing."""
    problem = Problem(ConvWorkload.depthwise((32, 144, 56, 56), (144, 1, 3, 3), dtype=dtype, padding=1))
    config = cuda_depthwise.default_config(problem, SM_90)
    assert config.thread_x == config.load == config.store >= 4
    assert config.outputs >= 16
    compiled("depthwise", problem, config, SM_90)
