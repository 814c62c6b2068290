"""Convolutions of one channel as depthwise and as dense ones on this CPU: which of them `ConvWorkload.is_depthwise`.

    python benchmarks/one_channel.py

prints a row for each convolution: its input, filters, kernel and stride, and the µs of a call with vectors of columns
(depthwise), with vectors of filters (dense) and in PyTorch, the minimum of interleaved rounds.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from script import print_fastest

import tvmconv

CASES = [
    *((1, 16000, filters, (1, 40), (1, 20)) for filters in (8, 16, 32)),
    *((1, 16000, filters, (1, 128), (1, 1)) for filters in (8, 16, 64)),
    (1, 48000, 402, (1, 400), (1, 160)),
    *((side, side, filters, (3, 3), (1, 1)) for side in (28, 112) for filters in (8, 16, 32)),
    *((side, side, filters, (3, 3), (2, 2)) for side in (128, 224) for filters in (8, 16, 32)),
    (64, 64, 64, (7, 7), (2, 2)),
]
"""Height, width, filters, kernel and stride."""

WAYS = ("depthwise", "dense")


def network(layer: torch.nn.Module, x: torch.Tensor, way: str) -> Callable[..., object]:
    """Return the network of a layer, which is computed in one of `WAYS`."""
    workload = importlib.import_module("tvmconv.problem.workload").ConvWorkload
    workload.is_depthwise = property(lambda self: way == "depthwise")
    return tvmconv.build(tvmconv.import_model(layer, (x,)))


@torch.no_grad()
def main() -> None:
    for height, width, filters, kernel, stride in CASES:
        layer, x = torch.nn.Conv2d(1, filters, kernel, stride).eval(), torch.randn(1, 1, height, width)
        ways = {way: partial(network(layer, x, way), x.numpy()) for way in WAYS}
        expected = layer.double()(x.double()).numpy()
        layer.float()
        for run in ways.values():
            np.testing.assert_allclose(np.asarray(run()), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        case = {"input": (height, width), "filters": filters, "kernel": kernel, "stride": stride}
        print_fastest(case, {**ways, "PyTorch": partial(layer, x)})


if __name__ == "__main__":
    main()
