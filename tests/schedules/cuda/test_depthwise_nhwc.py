"""Depthwise convolution in NHWC on CUDA: numbers through serial twins and an emulator, and machine code."""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec
import numpy as np
import pytest
import tvm

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.schedules.cases.nhwc import CASES, CONFIGURED, config, nhwc
from tests.schedules.spaces import check_space, check_whole_space
from tests.shared.sparing import every, sparing
from tvmconv import ConvWorkload
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.errors import InvalidArgumentError
from tvmconv.lowering import KERNEL_NAME, build_kernel, build_twin, lower
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_nhwc import Config
from tvmconv.schedules.cuda.depthwise_nhwc import template as depthwise_nhwc
from tvmconv.schedules.cuda.depthwise_nhwc.tiles import products, shared_bytes
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import check_result, random_configs, random_operands

SM_90, SM_80 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_90", "sm_80"))

by_configured = pytest.mark.parametrize(("workload", "config"), CONFIGURED.values(), ids=CONFIGURED.keys())


def run_twin(problem: Problem, config: Config | None = None, at: ConvWorkload | None = None) -> None:
    """Build the serial twin of a kernel, and check its result."""
    workload = at or problem.workload
    twin = build_twin(problem, select(problem, SM_90, config), SM_90, workload=at)
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    twin.executable[KERNEL_NAME](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


@pytest.mark.parametrize("workload", every(2, CASES.values()), ids=CASES.keys())
def test_default_configuration(workload: ConvWorkload) -> None:
    run_twin(Problem(workload))


@pytest.mark.parametrize("workload", every(4, CASES.values()), ids=CASES.keys())
def test_random_legal_configuration(workload: ConvWorkload) -> None:
    for chosen in random_configs(workload, SM_90, 1):
        run_twin(Problem(workload), chosen)


@by_configured
def test_configuration(workload: ConvWorkload, config: Config) -> None:
    run_twin(Problem(workload), config)


@pytest.mark.parametrize("name", ["half", "residual", "odd-channels"])
def test_open_batch(name: str) -> None:
    workload, chosen = CONFIGURED[name]
    for batch in (1, 5):
        run_twin(Problem(workload, open_sizes=("batch",)), chosen, msgspec.structs.replace(workload, batch=batch))


@pytest.mark.parametrize(("name", "open_sizes"), [("half", ()), ("ahead", ()), ("residual", ("batch",))])
def test_lowered_kernel(name: str, open_sizes: tuple[str, ...]) -> None:
    """No thread reads a tap before all have staged theirs."""
    workload, chosen = CONFIGURED[name]
    problem = Problem(workload, open_sizes=open_sizes)
    func = lower(problem, select(problem, SM_90, chosen), SM_90, KERNEL_NAME)
    arrays = random_operands(workload)
    operands = {name: array.copy() for name, array in arrays.items()}
    (kernel,) = device_functions(func, SM_90, {"batch": workload.batch} if open_sizes else None)
    Emulator(kernel, arrays)
    check_result(workload, operands, arrays["output"])


def compiled(workload: ConvWorkload, config: Config | None, target: tvm.target.Target) -> str:
    """Check that a kernel spills nothing and leaves room for its threads, and return its source."""
    selection = select(Problem(workload), target, config)
    executable, *_ = build_kernel(Problem(workload), selection, target)
    source = str(executable.mod.imports[0].inspect_source())
    (kernel,) = cuda.kernel_resources(source, str(target.attrs["arch"]))
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    assert kernel.registers * selection.config.threads <= 65536
    assert kernel.shared_bytes == shared_bytes(workload, selection.config)
    return source


@pytest.mark.parametrize(
    ("workload", "config", "target"),
    sparing(
        [(*each, target) for each in CONFIGURED.values() for target in (SM_90, SM_80)], lambda number: number % 3 == 0
    ),
)
def test_cubin(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> None:
    compiled(workload, config, target)


@pytest.mark.parametrize(("dtype", "vector"), [("float16", 8), ("bfloat16", 8), ("float32", 4)])
def test_instructions(dtype: str, vector: int) -> None:
    """Each element is loaded once, in whole vectors, and each product is one instruction."""
    workload = nhwc((2, 64, 16, 16), (64, 1, 3, 3), dtype=dtype)
    chosen = config(vector=vector, threads_c=64 // vector, threads_y=2, threads_x=4, thread_y=2, thread_x=2)
    ptx = cuda.to_ptx(compiled(workload, chosen, SM_90), "sm_90")
    assert len(re.findall(r"\bfma\.rn\S*f32", ptx)) == chosen.outputs * 9
    assert len(re.findall(r"\bld\.global\S*\.v4\.\S*32", ptx)) == 16
    assert len(re.findall(r"\bst\.global\S*\.v4\.\S*32", ptx)) == 4


def test_products_of_zeros_around_a_small_plane_are_left_out() -> None:
    workload, chosen = nhwc((1, 32, 7, 7), (32, 1, 5, 5)), config(threads_c=32, thread_y=7, thread_x=7)
    ptx = cuda.to_ptx(compiled(workload, chosen, SM_90), "sm_90")
    assert len(re.findall(r"\bfma\.rn\S*f32", ptx)) == products(workload, chosen) == (7 * 5 - 2 * (2 + 1)) ** 2


@pytest.mark.parametrize("name", CASES)
def test_space_begins_with_the_default_and_is_legal(name: str) -> None:
    problem = Problem(CASES[name])
    default = depthwise_nhwc.default_config(problem, SM_90)
    check_space(depthwise_nhwc.space(problem, SM_90), default)
    assert all(value > 0 for value in depthwise_nhwc.features(problem, default, SM_90).values())
    for without in depthwise_nhwc.ablations(default).values():
        assert depthwise_nhwc.space(problem, SM_90).violated(without) == []


def test_whole_space_is_legal() -> None:
    check_whole_space(depthwise_nhwc.space(Problem(CASES["stride-2-odd"]), SM_90))


@pytest.mark.parametrize("channels", [24, 58, 96, 116, 960, 1280])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_default_reads_whole_sectors(channels: int, dtype: str) -> None:
    workload = nhwc((32, channels, 14, 14), (channels, 1, 3, 3), dtype=dtype)
    chosen = depthwise_nhwc.default_config(Problem(workload), SM_90)
    assert chosen.channels * workload.itemsize >= 32
    assert chosen.threads >= 32


@pytest.mark.parametrize(
    ("workload", "why"),
    [
        (nhwc((1, 8, 9, 9), (8, 2, 3, 3)), "takes one output for each channel, not 2"),
        (nhwc((1, 2, 120, 121), (2, 1, 3, 3), dilation=57), "windows that it can unroll in registers, not of 115x115"),
    ],
    ids=["multiplier", "window"],
)
def test_obstacles(workload: ConvWorkload, why: str) -> None:
    assert "depthwise_nhwc" not in algorithms_for(Problem(workload), SM_90)
    with pytest.raises(InvalidArgumentError, match=why):
        template_for(Problem(workload), SM_90, "depthwise_nhwc")


def test_a_residual_of_an_open_plane_is_refused() -> None:
    problem = Problem(nhwc((1, 8, 9, 9), (8, 1, 3, 3), residual=True), open_sizes=("height",))
    with pytest.raises(InvalidArgumentError, match="takes no residual where a height or a width is left open"):
        template_for(problem, SM_90)
    assert algorithms_for(msgspec.structs.replace(problem, open_sizes=("batch",)), SM_90) == ("depthwise_nhwc",)


def test_nan_and_infinity_stay_in_their_windows() -> None:
    """What is read beside the input in the place of zeros is left out, whatever it is."""
    workload = nhwc((1, 8, 6, 6), (8, 1, 3, 3))
    operands = random_operands(workload)
    operands["x"][0, 0, 0, 0], operands["x"][0, -1, -1, 1] = np.nan, np.inf
    twin = build_twin(Problem(workload), select(Problem(workload), SM_90), SM_90)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    twin.executable[KERNEL_NAME](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


def test_wrong_schedule_is_caught() -> None:
    """A kernel that is wrong by one element of padding fails the check that the others pass."""
    right, wrong = (nhwc((1, 4, 12, 12), (4, 1, 3, 3), padding=padding) for padding in ((1, 1, 1, 1), (1, 2, 1, 0)))
    with pytest.raises(AssertionError, match="elements are wrong"):
        run_twin(Problem(wrong), replace(depthwise_nhwc.LEAST, thread_x=2), right)


def test_large_windows_are_refused_by_the_template() -> None:
    """A window whose taps do not fit for a sector of channels has no configuration worth having."""
    workload = ConvWorkload.depthwise((8, 64, 56, 56), (64, 1, 31, 31), dtype="float16").in_nhwc()
    assert "windows that it can unroll" in str(depthwise_nhwc.obstacle(Problem(workload), SM_90))
