"""`benchmarks/memory.py`: formulas against the kernels' own allocations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from types import ModuleType

import pytest

from tests.shared.scripts import script
from tvmconv import ConvWorkload
from tvmconv.runtime import operators
from tvmconv.schedules.cpu import direct
from tvmconv.schedules.cpu.direct import im2win
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")
AVX_512 = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"})

WORKLOADS = [
    ConvWorkload.conv2d((2, 16, 10, 12), (32, 16, 3, 3), padding="VALID"),
    ConvWorkload.conv2d((2, 16, 9, 12), (32, 8, 3, 5), padding=(1, 2, 0, 2), groups=2),
    ConvWorkload.conv2d((1, 16, 14, 12), (16, 16, 3, 1), padding=0, dilation=(2, 1)),
    ConvWorkload.conv2d((1, 16, 16, 24), (16, 16, 2, 2), padding=0, stride=2),
    ConvWorkload.conv2d((1, 16, 8, 12), (16, 16, 1, 1)),
]
by_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=str)


@pytest.fixture(scope="module")
def memory() -> Iterator[ModuleType]:
    with script("memory") as module:
        yield module


@by_workload
def test_formulas_are_what_kernels_allocate(memory: ModuleType, workload: ConvWorkload) -> None:
    """Kernels allocate the formula's bytes beside the weight, which they lay out in whole blocks."""
    tile = {"vectors": 1, "vector": 16, "rows": 1, "columns": workload.output_size[1], "channels": 1, "tiles": 1}
    weight = 4 * prod(workload.w_shape)
    for config, formula in (
        (direct.Config(**tile, staged=1, parallel=False), memory.FORMULAS["direct"]),
        (im2win.Config(**tile, staged=2, parallel=False), memory.im2win_bytes),
    ):
        assert operators.compile(workload, AVX_512, config).workspace_bytes == weight + formula(workload)


@by_workload
def test_the_formula_of_im2col_is_what_torch_unfolds(memory: ModuleType, workload: ConvWorkload) -> None:
    top, left, bottom, right = workload.padding
    x = torch.nn.functional.pad(torch.zeros(workload.x_shape), (left, right, top, bottom))
    columns = torch.nn.functional.unfold(x, workload.kernel, workload.dilation, 0, workload.stride)
    assert memory.im2col_bytes(workload) == columns.nbytes >= memory.im2win_bytes(workload)


def test_windows_as_high_as_the_stride_are_the_input(memory: ModuleType) -> None:
    workload = WORKLOADS[3]
    assert memory.im2win_bytes(workload) == memory.im2col_bytes(workload) == 4 * prod(workload.x_shape)
    half = ConvWorkload.conv2d((1, 16, 16, 24), (16, 16, 2, 2), padding=0, stride=2, dtype="float16")
    assert memory.im2win_bytes(half) == memory.im2col_bytes(half) == 2 * prod(workload.x_shape)
