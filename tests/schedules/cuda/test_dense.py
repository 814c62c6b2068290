"""The CUDA schedules of dense convolutions: numbers through serial twins, and the resources of their kernels."""

from __future__ import annotations

from itertools import product

import pytest

from tests.emulated.twins_and_cubins import SM_90, run_twin
from tests.schedules.cases.direct import CASES, IM2WIN
from tests.shared.sparing import every, sparing
from tvmconv import ConvWorkload
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.lowering import build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.errors import NoValidConfigurationError
from tvmconv.schedules.cuda.gemm.tiles import GemmConfig, shared_bytes
from tvmconv.schedules.cuda.simt.direct import Config
from tvmconv.schedules.cuda.simt.direct import template as direct
from tvmconv.schedules.cuda.simt.im2win import template as im2win
from tvmconv.targets import cuda
from tvmconv.testing import CONV2D, Case


def main_kernel(problem: Problem, config: GemmConfig | None = None) -> tuple[cuda.KernelResources, str]:
    """Return the resources of the kernel that computes the product, and the source of all kernels."""
    executable, *_ = build_kernel(problem, select(problem, SM_90, config), SM_90)
    source = str(executable.mod.imports[0].inspect_source())
    return max(cuda.kernel_resources(source, "sm_90"), key=lambda kernel: kernel.shared_bytes), source


@pytest.mark.parametrize("case", every(6, CONV2D), ids=lambda case: case.id)
def test_default_configuration(case: Case) -> None:
    run_twin("direct", Problem(case.workload), None)


@pytest.mark.parametrize("case", every(9, CONV2D), ids=lambda case: case.id)
def test_im2win_default_configuration(case: Case) -> None:
    run_twin("im2win", Problem(case.workload), None)


COMPILED = (
    *("window-chunks", "groups-split-k"),
    *("split-k-past-the-last", "micro-tile-8x16", "room-for-more", *NARROW),
)
"""The cases that `make test` compiles for the GPU as well, which takes seconds: they use every knob."""


@pytest.mark.parametrize(
    ("problem", "config"),
    sparing(CASES.values(), lambda number: [*CASES][number] in COMPILED),
    ids=CASES.keys(),
)
def test_cubin_of_configuration(problem: Problem, config: Config) -> None:
    kernel, source = main_kernel(problem, config)
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    assert 0.9 * shared_bytes(problem.workload, config) < kernel.shared_bytes <= shared_bytes(problem.workload, config)
    assert ("cp.async" in source) == config.asynchronous
    assert kernel.registers * config.threads * config.min_blocks_per_sm <= 65536


def test_windows_are_a_kernel_of_their_own() -> None:
    problem, chosen = IM2WIN["through-registers"]
    executable, *_ = build_kernel(problem, select(problem, SM_90, chosen), SM_90)
    kernels = cuda.kernel_resources(str(executable.mod.imports[0].inspect_source()), "sm_90")
    assert sorted(kernel.shared_bytes > 0 for kernel in kernels) == [False, False, True]
    assert {kernel.spill_store_bytes for kernel in kernels} == {0}


def test_windows_beyond_32_bits_are_refused() -> None:
    workload = ConvWorkload.conv2d((96, 64, 256, 256), (64, 64, 7, 7), padding=3)
    default = direct.default_config(Problem(workload), SM_90)
    assert direct.space(Problem(workload), SM_90).violated(default) == []
    with pytest.raises(NoValidConfigurationError, match="no configuration is legal"):
        im2win.default_config(Problem(workload), SM_90)
    assert "im2win" not in algorithms_for(Problem(workload), SM_90)
    assert template_for(Problem(workload), SM_90) is not im2win


def test_nothing_is_copied_behind_from_beyond_2_gib() -> None:
    """TVM multiplies the index that cp.async reads from by 4 in 32 bits."""
    near, far = (
        ConvWorkload.conv2d((batch, 64, 224, 224), (64, 64, 7, 7), stride=2, padding=0) for batch in (128, 168)
    )
    assert direct.default_config(Problem(near), SM_90).asynchronous
    chosen = direct.default_config(Problem(far), SM_90)
    assert (chosen.asynchronous, chosen.num_stages) == (False, 2)
    assert "pipeline" in direct.space(Problem(far), SM_90).violated(direct.default_config(Problem(near), SM_90))
    assert not im2win.default_config(Problem(near), SM_90).asynchronous  # its windows are 5.6 GB


def test_groups_of_few_channels_fill_blocks() -> None:
    """A group of 34 output channels does not lead to blocks of 2."""
    workload = ConvWorkload.conv2d((1, 136, 28, 28), (136, 34, 1, 1), groups=4)
    assert direct.default_config(Problem(workload), SM_90).block_m >= 16


@pytest.mark.parametrize(
    ("layer", "batch"),
    sparing(product(("conv1", "conv8"), (1, 128)), lambda number: number in (2, 3)),
)
def test_suite_does_not_spill(layer: str, batch: int) -> None:
    workload = load_suite("im2win-thesis", "cuda", batch)[layer]
    kernel, _ = main_kernel(Problem(workload))
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
