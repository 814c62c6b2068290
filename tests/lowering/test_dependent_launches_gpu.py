"""Kernels that are launched while the one before is at work on a real GPU: each reads what others have written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tvmconv
from tvmconv.schedules.cuda import tensor

torch = pytest.importorskip("torch")

LAYERS = 200
"""The number of kernels, or pairs of them, in a chain."""

WORKLOAD = tvmconv.ConvWorkload.conv2d((1, 64, 14, 14), (64, 64, 3, 3), activation="relu6", dtype="float16").in_nhwc()

CONFIGS = {
    "one kernel": tensor.Config(64, 32, 1, 1, num_stages=4, wgmma=True),
    "two kernels": tensor.Config(64, 32, 1, 1, num_stages=4, wgmma=True, split_k=2),
    "a cluster": tensor.Config(64, 32, 1, 1, num_stages=4, wgmma=True, split_k=2, in_cluster=True),
    "warps with roles": tensor.Config(64, 64, 1, 1, num_stages=8, wgmma=True, teams=2),
}


def chain(operator: tvmconv.Operator, x: Any, w: Any, between: Callable[[Any], Any]) -> Any:
    """Return what layer after layer makes of x, each of the former one's output, whose memory the next but one has."""
    for _ in range(LAYERS):
        x = between(operator(x, w))
    return x


@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_of_kernels(name: str) -> None:
    generator = torch.Generator("cuda").manual_seed(3)
    x = torch.randn(WORKLOAD.operands["x"][0], device="cuda", dtype=torch.float16, generator=generator)
    w = torch.randn(WORKLOAD.operands["w"][0], device="cuda", generator=generator)
    w = (w * (4 / (9 * 64)) ** 0.5).half()  # outputs grow until `relu6` cuts them off
    operator = tvmconv.compile(WORKLOAD, "cuda", config=CONFIGS[name])

    def waited(y: Any) -> Any:
        torch.cuda.synchronize()
        return y

    expected = chain(operator, x, w, waited)
    assert expected.isfinite().all()
    assert expected.abs().max() > 0
    assert torch.equal(chain(operator, x, w, lambda y: y), expected)
    assert torch.equal(chain(operator, x, w, torch.clone), expected)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = chain(operator, x, w, lambda y: y)
    for _ in range(3):
        result.zero_()
        graph.replay()
        assert torch.equal(result, expected)
