"""The gradients of depthwise convolutions on CUDA without a GPU: serial twins, emulated kernels, and cubins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import tvm
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.schedules.cases.gradients import CASES, GRADIENTS, SINGLE, any_batch, check, check_twin, lowered
from tests.shared.sparing import in_turns, sparing
from tvmconv import ConvWorkload
from tvmconv.autotvm import ApplyHistoryBest
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_function, build_twin, build_twin_function
from tvmconv.lowering.gpu.conditions import with_tests_before_loops
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import Workspace, statements_of, take_out
from tvmconv.problem import IMAGES, Problem
from tvmconv.runtime.arrays import from_numpy, to_torch
from tvmconv.schedules.cuda import weight_gradient, weight_gradient_nhwc
from tvmconv.schedules.cuda.gradients.weight import Config
from tvmconv.schedules.cuda.machine import REGISTERS
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of
from tvmconv.testing import random_operands

SM_80, SM_90 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_80", "sm_90"))
CPU = resolve_target(TWIN_TARGET)

BY_WEIGHT, BY_WEIGHT_IN_NHWC = weight_gradient.template, weight_gradient_nhwc.template

by_gradient = pytest.mark.parametrize("of", GRADIENTS)


def with_gradients(names: Iterable[str]) -> list[Any]:
    """Return each name with both gradients; `make test` tries one for a name and the other for the next."""
    return sparing(product(names, GRADIENTS), in_turns)


def without_tensor_cores(problem: Problem, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the function of a gradient; that by the weight without tensor cores, which have tests of their own."""
    is_plain = problem.direction == "weight_gradient" and problem.workload.is_in_nchw
    return lowered(problem, target, algorithm="weight_gradient" if is_plain else "auto")


def scheduled(of: str, workload: ConvWorkload) -> tuple[tirx.PrimFunc, Workspace]:
    """Return the function of a gradient for any batch, and its workspace."""
    return take_out(without_tensor_cores(any_batch(of, workload, SM_90), SM_90), SM_90)


@pytest.mark.parametrize(("name", "of"), sparing(product(CASES, GRADIENTS), lambda index: index % 8 in (1, 6)))
def test_serial_twin(name: str, of: str) -> None:
    check_twin(of, CASES[name], *scheduled(of, CASES[name]))


@by_gradient
def test_tensors_in_channels_last_go_in_as_they_lie(of: str) -> None:
    torch = pytest.importorskip("torch")
    workload = ConvWorkload.depthwise((1, 8, 9, 10), (8, 1, 3, 3), stride=2)
    problem = Problem(workload.in_nhwc(), channels_last=True, direction=of)
    func, workspace = take_out(lowered(problem, SM_90), SM_90)
    twin = build_twin_function(func).executable[KERNEL_NAME]
    arrays = random_operands(workload, direction=of)
    lying = {name: to_torch(array) for name, array in arrays.items()}
    lying |= {name: lying[name].contiguous(memory_format=torch.channels_last) for name in IMAGES[of]}
    memory = [tvm.runtime.empty(shape, dtype) for shape, dtype in workspace.sized(workload)]
    twin(*lying.values(), *memory)
    check(of, workload, arrays, lying["output"].contiguous().numpy())
    with pytest.raises(ValueError, match="Invalid dy.strides"):
        twin(*(lying | {"dy": to_torch(arrays["dy"])}).values(), *memory)


MIRRORED = {
    "depthwise": ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 4), dilation=2, padding=(4, 1, 0, 6)),
    "depthwise_nhwc": ConvWorkload.depthwise((2, 8, 9, 10), (8, 1, 3, 5), padding=(2, 3, 1, 1)).in_nhwc(),
    "depthwise_bands": ConvWorkload.depthwise((2, 3, 14, 14), (3, 1, 13, 12), dtype="float16"),
    "depthwise_planes": ConvWorkload.depthwise((2, 4, 14, 14), (4, 1, 7, 6), dtype="float16"),
}
"""Workloads whose gradients by the input are convolutions, by the algorithms that compute these."""


def run_mirrored(algorithm: str, workload: ConvWorkload, mirrored: bool = True) -> None:
    """Run the serial twin of the convolution that is a gradient by the input, and check its result."""
    problem = Problem(workload, direction="input_gradient").as_convolution
    assert not problem.is_gradient
    assert problem.mirrored
    problem = msgspec.structs.replace(problem, mirrored=mirrored)
    kernel = build_twin(problem, select(problem, SM_90, algorithm=algorithm), SM_90)
    arrays = random_operands(workload, direction="input_gradient")
    kernel.executable[KERNEL_NAME](*map(from_numpy, arrays.values()))
    check("input_gradient", workload, arrays, arrays["output"])


@pytest.mark.parametrize("algorithm", MIRRORED)
def test_kernels_of_convolutions_take_mirrored_taps(algorithm: str) -> None:
    run_mirrored(algorithm, MIRRORED[algorithm])


def test_taps_that_are_not_mirrored_are_caught() -> None:
    with pytest.raises(AssertionError, match="elements are wrong"):
        run_mirrored("depthwise", MIRRORED["depthwise"], mirrored=False)


def test_mirrored_taps_take_what_is_tuned_for_the_convolution() -> None:
    workload = ConvWorkload.depthwise((1, 256, 96, 96), (256, 1, 3, 3))
    with ApplyHistoryBest(Path(__file__).parents[3] / "tuning_logs" / "nvidia-h200.jsonl"):
        plain, mirrored = (select(Problem(workload, mirrored=each), SM_90) for each in (False, True))
    assert plain.reason.startswith("tuned")
    assert mirrored == plain


@pytest.mark.parametrize(("name", "of"), sparing(product(SINGLE, GRADIENTS), lambda index: index % 12 in (1, 6)))
def test_serial_twin_in_nhwc(name: str, of: str) -> None:
    workload = SINGLE[name].in_nhwc()
    check_twin(of, workload, *scheduled(of, workload))


@pytest.mark.parametrize("parts", [1, 3])
def test_counts_have_a_kernel_that_adds_up_where_there_is_one(parts: int) -> None:
    problem = any_batch("weight_gradient", EMULATED["3x3"], SM_90)
    config = replace(BY_WEIGHT.default_config(problem, SM_90), parts=parts)
    function = lowered(problem, SM_90, config, "weight_gradient")
    kernels = BY_WEIGHT.counts(problem, config, SM_90).kernels
    assert kernels == len(statements_of(function.body.block)) == min(parts, 2)


@by_gradient
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_a_wrong_kernel_is_caught(layout: str, of: str) -> None:
    right = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3), stride=2, padding=(1, 1, 1, 1))
    wrong = ConvWorkload.depthwise((2, 3, 12, 11), (3, 1, 3, 3), stride=2, padding=(2, 1, 0, 1))
    if layout == "NHWC":
        right, wrong = right.in_nhwc(), wrong.in_nhwc()
    check_twin(of, right, *scheduled(of, right))
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_twin(of, right, *scheduled(of, wrong))


EMULATED = {
    "3x3": ConvWorkload.depthwise((1, 3, 12, 20), (3, 1, 3, 3)),
    "5x5-stride-2": ConvWorkload.depthwise((2, 2, 15, 14), (2, 1, 5, 5), stride=2),
    "many-parts": ConvWorkload.depthwise((8, 1, 40, 41), (1, 1, 3, 3)),
    "small-planes": ConvWorkload.depthwise((16, 5, 7, 7), (5, 2, 3, 3)),
    "planes": ConvWorkload.depthwise((8, 2, 9, 10), (2, 1, 7, 7)),
    "half": ConvWorkload.depthwise((2, 2, 9, 30), (2, 1, 3, 3), stride=2, dtype="float16"),
    "1x1-kernel": ConvWorkload.depthwise((2, 2, 9, 30), (2, 1, 1, 1)),
    "9x9-kernel": ConvWorkload.depthwise((2, 2, 7, 7), (2, 1, 9, 9)),
}
"""Workloads with which warps add up, with and without several blocks of taps."""

IN_PARTS = {
    "many-parts": Config(block_r=3, block_s=3, rows=8, images=0, warps=4, parts=13),
    "planes": Config(block_r=7, block_s=7, rows=5, images=3, warps=1, parts=3),
}
"""Configurations by the weight with several parts of a channel: of tiles, and of planes in shared memory."""


@by_gradient
@pytest.mark.parametrize("name", EMULATED)
def test_lowered_kernels(name: str, of: str) -> None:
    """One lowering serves for all batches, and warps add up what their threads have."""
    workload = EMULATED[name]
    func, _ = scheduled(of, workload)
    _check_emulated(of, workload, func)


@pytest.mark.parametrize("name", IN_PARTS)
def test_lowered_kernels_of_parts(name: str) -> None:
    """A second kernel adds up what blocks have."""
    problem = any_batch("weight_gradient", EMULATED[name], SM_90)
    func, _ = take_out(lowered(problem, SM_90, IN_PARTS[name], "weight_gradient"), SM_90)
    _check_emulated("weight_gradient", EMULATED[name], func)


def _check_emulated(of: str, workload: ConvWorkload, func: tirx.PrimFunc) -> None:
    """Run a gradient's kernels for two batches, and check the results."""
    for batch in (workload.batch, 3):
        case = ConvWorkload.depthwise(
            (batch, *workload.x_shape[1:]),
            workload.w_shape,
            stride=workload.stride,
            dtype=workload.dtype,
            padding=workload.padding,
        )
        arrays = random_operands(case, direction=of)
        given = {name: array.copy() for name, array in arrays.items()}
        for kernel in device_functions(with_tests_before_loops(func), SM_90, {"batch": batch}):
            Emulator(kernel, arrays)
        check(of, case, given, arrays["output"])


LARGE = {
    "112": ConvWorkload.depthwise((32, 32, 112, 112), (32, 1, 3, 3)),
    "112-stride-2": ConvWorkload.depthwise((32, 96, 112, 112), (96, 1, 3, 3), stride=2),
    "7": ConvWorkload.depthwise((32, 960, 7, 7), (960, 1, 3, 3)),
    "28-5x5": ConvWorkload.depthwise((32, 240, 28, 28), (240, 1, 5, 5)),
    "28-5x5-stride-2-half": ConvWorkload.depthwise((32, 240, 28, 28), (240, 1, 5, 5), stride=2, dtype="float16"),
    "28-7x7": ConvWorkload.depthwise((32, 192, 28, 28), (192, 1, 7, 7)),
    "28-7x7-stride-2-half": ConvWorkload.depthwise((32, 192, 28, 28), (192, 1, 7, 7), stride=2, dtype="bfloat16"),
    "56-13x13": ConvWorkload.depthwise((8, 64, 56, 56), (64, 1, 13, 13)),
    "56-31x31-stride-2": ConvWorkload.depthwise((1, 64, 56, 56), (64, 1, 31, 31), stride=2),
    "multiplier-2": ConvWorkload.depthwise((8, 64, 56, 56), (64, 2, 3, 3), dilation=2),
    "over-2-gib": ConvWorkload.depthwise((64, 96, 320, 320), (96, 1, 3, 3), stride=2),
}


@pytest.mark.parametrize(("name", "of"), with_gradients(LARGE), ids=str)
def test_cubin(name: str, of: str) -> None:
    """All sums are in registers, for enough threads to hide what memory takes."""
    target = SM_80 if name in ("112", "28-7x7") else SM_90
    problem = any_batch(of, LARGE[name], target)
    assert problem.open_sizes == (() if name == "over-2-gib" else ("batch",))
    kernel = build_function(without_tensor_cores(problem, target), target)
    found = cuda.kernel_resources(str(kernel.executable.mod.imports[0].inspect_source()), str(target.attrs["arch"]))
    is_one = of == "input_gradient" or BY_WEIGHT.default_config(problem, target).parts == 1
    assert len(found) == (1 if is_one else 2)
    for each in found:
        assert (each.stack_bytes, each.spill_store_bytes, each.spill_load_bytes) == (0, 0, 0)
        assert each.registers <= 168


def registers_for(problem: Problem) -> int:
    """Return the registers of a thread with which the blocks of a gradient in NHWC share a multiprocessor."""
    config = BY_WEIGHT_IN_NHWC.default_config(problem, SM_90)
    resident = BY_WEIGHT_IN_NHWC.resident_blocks(problem, config, gpu_of(SM_90))
    return REGISTERS // (resident * config.threads)


@pytest.mark.parametrize(
    ("name", "of"), with_gradients(("112-stride-2", "7", "28-5x5-stride-2-half", "28-7x7-stride-2-half")), ids=str
)
def test_cubin_in_nhwc(name: str, of: str) -> None:
    """All sums are in registers, for as many blocks on a multiprocessor as the model of the tiles expects there."""
    problem = any_batch(of, LARGE[name].in_nhwc(), SM_90)
    kernel = build_function(lowered(problem, SM_90), SM_90)
    found = cuda.kernel_resources(str(kernel.executable.mod.imports[0].inspect_source()), str(SM_90.attrs["arch"]))
    assert len(found) == (1 if of == "input_gradient" else 2)
    for each in found:
        assert (each.stack_bytes, each.spill_store_bytes, each.spill_load_bytes) == (0, 0, 0)
        assert each.registers <= (200 if of == "input_gradient" else registers_for(problem))


def test_parts_fill_a_gpu_whatever_the_channels() -> None:
    for batch, channels in ((512, 1), (64, 96), (64, 960)):
        workload = ConvWorkload.depthwise((batch, channels, 56, 56), (channels, 1, 3, 3))
        tiles = BY_WEIGHT.default_config(any_batch("weight_gradient", workload, SM_90), SM_90)
        warps = channels * tiles.parts * tiles.warps
        assert warps >= 16 * gpu_of(SM_90).multiprocessors
        _, workspace = scheduled("weight_gradient", workload)
        shapes = [] if tiles.parts == 1 else [(channels, 1, 3, 3, tiles.parts)]
        assert [shape for shape, _ in workspace.parameters] == shapes


def test_tiles_in_nhwc_fill_a_gpu_whatever_the_channels() -> None:
    for batch, channels, size in ((512, 1, 56), (32, 96, 112), (32, 240, 28), (32, 960, 7)):
        workload = ConvWorkload.depthwise((batch, channels, size, size), (channels, 1, 3, 3), dtype="float16").in_nhwc()
        problem = any_batch("weight_gradient", workload, SM_90)
        config, gpu = BY_WEIGHT_IN_NHWC.default_config(problem, SM_90), gpu_of(SM_90)
        resident = BY_WEIGHT_IN_NHWC.resident_blocks(problem, config, gpu)
        waves = BY_WEIGHT_IN_NHWC.blocks(problem, config) / (resident * gpu.multiprocessors)
        assert waves >= 1 or resident * config.threads * waves >= 100
        assert waves <= 1 or waves % 1 == 0 or waves % 1 > 0.7
