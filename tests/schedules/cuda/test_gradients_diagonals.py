"""Gradients by the weight on tensor cores: numbers through serial twins and an emulator, machine code, and choices."""

from __future__ import annotations

import re

import msgspec
import pytest
import tvm
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.schedules.cases.diagonals import CASES, planes, scheduled
from tests.schedules.cases.gradients import any_batch, check, check_twin, lowered
from tests.shared.sparing import every
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import build_function
from tvmconv.lowering.gpu.conditions import with_tests_before_loops
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import take_out
from tvmconv.problem import Problem
from tvmconv.schedules.cuda import weight_gradient_diagonals
from tvmconv.schedules.cuda.gradients.diagonals_tiles import Config
from tvmconv.schedules.cuda.machine import REGISTERS
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of
from tvmconv.testing import random_operands

SM_75, SM_80, SM_90 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_75", "sm_80", "sm_90"))
CPU = resolve_target(TWIN_TARGET)

DIRECTION = "weight_gradient"
TEMPLATE = weight_gradient_diagonals.template

by_case = pytest.mark.parametrize(("workload", "config"), CASES.values(), ids=CASES)


def problem_of(workload: ConvWorkload, target: tvm.target.Target) -> Problem:
    return any_batch(DIRECTION, workload, target)


def run_twin(workload: ConvWorkload, config: Config, of: ConvWorkload | None = None) -> None:
    """Run the serial twin of a kernel and check its result; the kernel may be of another workload."""
    run_function(workload, scheduled(of or workload, config, SM_90))


def run_function(workload: ConvWorkload, func: tirx.PrimFunc) -> None:
    check_twin(DIRECTION, workload, *take_out(func, SM_90))


@by_case
def test_serial_twin(workload: ConvWorkload, config: Config) -> None:
    run_twin(workload, config)


@by_case
def test_lowered_kernel(workload: ConvWorkload, config: Config) -> None:
    """Copies have arrived where they are multiplied, for any batch, and a block has as much memory as is counted."""
    func, _ = take_out(scheduled(workload, config, SM_90), SM_90)
    for batch in {workload.batch, 1}:
        case = msgspec.structs.replace(workload, batch=batch)
        arrays = random_operands(case, direction=DIRECTION)
        given = {name: array.copy() for name, array in arrays.items()}
        kernels = device_functions(with_tests_before_loops(with_intrinsics(func)), SM_90, {"batch": batch})
        runs = [Emulator(kernel, arrays) for kernel in kernels]
        check(DIRECTION, case, given, arrays["output"])
        assert max(run.shared_bytes for run in runs) == TEMPLATE.shared_bytes(problem_of(workload, SM_90), config)


def test_a_wrong_kernel_is_caught() -> None:
    right, config = CASES["5x5-many-parts"]
    wrong = planes((150, 2, 5, 6), 5, padding=(3, 2, 1, 2))
    with pytest.raises(AssertionError, match="elements are wrong"):
        run_twin(right, config, wrong)


def kernels_fit(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> str:
    """Check that kernels spill nothing, with as many blocks on a multiprocessor as the model counts; return the PTX."""
    arch = str(target.attrs["arch"])
    kernel = build_function(scheduled(workload, config, target), target)
    source = str(kernel.executable.mod.imports[0].inspect_source())
    found, ptx, _ = cuda.assembled(source, arch)
    assert len(found) == (1 if config.parts == 1 else 2)
    resident = TEMPLATE.resident_blocks(problem_of(workload, target), config, gpu_of(target))
    for each in found:
        assert (each.stack_bytes, each.spill_store_bytes, each.spill_load_bytes) == (0, 0, 0)
        assert each.registers * config.threads * resident <= REGISTERS
    return ptx


@pytest.mark.parametrize(("workload", "config"), every(3, CASES.values()), ids=CASES)
def test_cubin(workload: ConvWorkload, config: Config) -> None:
    kernels_fit(workload, config, SM_90)


LARGE = {
    "56-31x31": planes((32, 128, 56, 56), 31),
    "28-29x29": planes((32, 256, 28, 28), 29, dtype="bfloat16"),
    "14-7x7": planes((128, 384, 14, 14), 7),
    "7-13x13": planes((32, 1024, 7, 7), 13, dtype="bfloat16"),
    "56-7x7": planes((32, 96, 56, 56), 7),
    "28-5x5": planes((32, 240, 28, 28), 5),
    "56-31x31-float32": planes((32, 128, 56, 56), 31, dtype="float32"),
    "28-29x29-float32": planes((32, 256, 28, 28), 29, dtype="float32"),
    "14-27x27-float32": planes((32, 512, 14, 14), 27, dtype="float32"),
}
"""Layers whose gradients are on tensor cores."""


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("target", [SM_80, SM_90], ids=["sm_80", "sm_90"])
def test_cubin_of_chosen_tiles(name: str, target: tvm.target.Target) -> None:
    selection = select(problem_of(LARGE[name], target), target)
    assert selection.name == "cuda/weight_gradient_diagonals"
    kernels_fit(LARGE[name], selection.config, target)


def test_instructions() -> None:
    """A row of taps takes a product for each tile along the diagonals, and a first factor is loaded for all of them."""
    ptx = kernels_fit(LARGE["56-31x31"], Config(16, 1, 1, 56, 2, 1), SM_90)
    assert len(re.findall(r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.f16", ptx)) % (2 * 18) == 0
    assert "ldmatrix.sync.aligned.m8n8.x4.trans" in ptx
    assert "cp.async.cg.shared.global" in ptx


def test_instructions_in_float32() -> None:
    """Each product is three of TF32 numbers."""
    ptx = kernels_fit(LARGE["14-27x27-float32"], Config(14, 1, 1, 16, 1, 1), SM_90)
    products = re.findall(r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.tf32", ptx)
    assert len(products) % (2 * 3 * 2) == 0
    assert len(products) > 0


def test_rows_that_no_warp_has_registers_for_are_left_to_other_kernels() -> None:
    workload = planes((1, 1, 8, 900), 3)
    problem = problem_of(workload, SM_90)
    assert TEMPLATE.obstacle(problem, SM_90) == "takes rows that fit a block, not of 900 columns"
    run_function(workload, lowered(problem, SM_90))


REFUSED = {
    "stride": (planes((2, 3, 14, 14), 7, stride=2), SM_90),
    "dilation": (planes((2, 3, 14, 14), 7, dilation=(1, 2)), SM_90),
    "column": (planes((2, 3, 14, 14), (7, 1)), SM_90),
    "float32-column": (planes((2, 3, 14, 14), (7, 1), dtype="float32"), SM_90),
    "multiplier": (ConvWorkload.depthwise((2, 3, 14, 14), (3, 2, 7, 7), dtype="float16"), SM_90),
    "old": (planes((2, 3, 14, 14), 7), SM_75),
}


@pytest.mark.parametrize(("workload", "target"), REFUSED.values(), ids=REFUSED)
def test_others_are_left_to_other_kernels(workload: ConvWorkload, target: tvm.target.Target) -> None:
    problem = problem_of(workload, target)
    assert select(problem, target).name == "cuda/weight_gradient"
    run_function(workload, lowered(problem, target))
