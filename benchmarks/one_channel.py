"""Convolutions of one channel as depthwise and as dense ones on this CPU: which of them `ConvWorkload.is_depthwise`.

    python benchmarks/one_channel.py

prints a row for each convolution: its input, filters, kernel and stride, and the µs of a call with vectors of columns
(depthwise), with vectors of filters (dense) and in PyTorch, the minimum of interleaved rounds.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable

import numpy as np
import torch

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


def main() -> None:
    print("height  width  filters  kernel  stride", *WAYS, "PyTorch", sep="  ")
    for height, width, filters, kernel, stride in CASES:
        layer, x = torch.nn.Conv2d(1, filters, kernel, stride).eval(), torch.randn(1, 1, height, width)
        given, runs = x.numpy(), {way: network(layer, x, way) for way in WAYS}
        expected = layer.double()(x.double()).detach().numpy()
        layer.float()
        for run in runs.values():
            np.testing.assert_allclose(np.asarray(run(given)), expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        best = dict.fromkeys((*WAYS, "PyTorch"), float("inf"))
        for _ in range(15):
            for way in best:
                for _ in range(3):
                    begun = time.perf_counter()
                    with torch.no_grad():
                        layer(x) if way == "PyTorch" else runs[way](given)
                    best[way] = min(best[way], time.perf_counter() - begun)
        sizes = (
            f"{height:6d}  {width:5d}  {filters:7d}  {'x'.join(map(str, kernel)):>6}  {'x'.join(map(str, stride)):>6}"
        )
        print(sizes, *(f"{1e6 * each:9.0f}" for each in best.values()), flush=True)


if __name__ == "__main__":
    main()
