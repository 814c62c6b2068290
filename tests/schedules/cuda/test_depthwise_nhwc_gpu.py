"""Depthwise convolution in NHWC on a real GPU: every case, random configurations, any batch, and torch's tensors."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tvmconv
from tests.schedules.cases.nhwc import CASES, WORKLOADS
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_configs, random_operands

torch = pytest.importorskip("torch")


def check(operator: tvmconv.Operator, workload: ConvWorkload) -> None:
    operands = random_operands(workload)
    given = {name: to_torch(array).cuda() for name, array in operands.items() if name != "output"}
    check_result(workload, operands, to_numpy(operator(**given).cpu()))


@pytest.mark.parametrize("name", WORKLOADS)
def test_legal_configurations(name: str) -> None:
    """The default configuration is right, and so are random ones."""
    workload, target = WORKLOADS[name], resolve_target("cuda")
    for config in (None, *random_configs(workload, target, 3)):
        check(tvmconv.compile(workload, target, config), workload)


@pytest.mark.parametrize("name", ["half", "residual", "odd-channels"])
def test_one_kernel_computes_every_batch(name: str) -> None:
    workload = CASES[name][0].workload
    operator = tvmconv.compile(workload, "cuda", open_sizes=("batch",))
    for batch in (1, 2, 7, 65):
        check(operator, msgspec.structs.replace(workload, batch=batch))


SHAPES: dict[str, tuple[tuple[int, ...], int, dict[str, Any]]] = {
    "mobilenet": ((4, 96, 28, 28), 3, {"stride": 2}),
    "efficientnet": ((2, 240, 14, 14), 5, {}),
    "convnext": ((2, 96, 28, 28), 7, {}),
    "odd": ((3, 35, 13, 9), 3, {"dilation": 2}),
}


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", SHAPES)
def test_tensors_in_channels_last(name: str, dtype: str) -> None:
    """The result is in channels_last too, for any batch, and agrees with that of contiguous tensors."""
    x_shape, kernel, options = SHAPES[name]
    for batch in (x_shape[0], 1, 9):
        x = torch.randn(batch, *x_shape[1:], device="cuda").to(getattr(torch, dtype))
        w = torch.randn(x_shape[1], 1, kernel, kernel, device="cuda").to(x.dtype)
        last = x.contiguous(memory_format=torch.channels_last)
        got = tvmconv.depthwise(last, w, activation="relu", **options)
        assert got.is_contiguous(memory_format=torch.channels_last)
        expected = tvmconv.depthwise(x, w, activation="relu", **options)
        torch.testing.assert_close(got, expected, check_stride=False)
        out = torch.empty_like(got)
        assert tvmconv.depthwise(last, w, activation="relu", out=out, **options) is out
        assert torch.equal(out, got)


def test_nothing_is_copied() -> None:
    """A call in channels_last allocates its output alone, with a residual too."""
    x = torch.randn(8, 64, 56, 56, device="cuda").half().contiguous(memory_format=torch.channels_last)
    w, residual = torch.randn(64, 1, 3, 3, device="cuda").half(), torch.randn_like(x)
    first = tvmconv.conv2d(x, w, groups=64, residual=residual)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = tvmconv.conv2d(x, w, groups=64, residual=residual)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < got.nbytes + x.nbytes // 2
    assert torch.equal(got, first)


def test_it_is_the_only_template_that_takes_the_layout() -> None:
    workload = WORKLOADS["float16"]
    assert select(Problem(workload), resolve_target("cuda")).name == "cuda/depthwise_nhwc"
