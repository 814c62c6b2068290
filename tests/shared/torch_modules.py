"""Modules of torch beside their networks, in float64 and on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvmconv
from tvmconv.checking import verify

torch = pytest.importorskip("torch")


class Function(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A module that calls a function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def exact(module: Any, *inputs: Any) -> np.ndarray:
    """Return what a module computes in float64, and leave it in float32."""
    with torch.no_grad():
        found: np.ndarray = module.double()(*(each.double() for each in inputs)).numpy()
    module.float()
    return found


def check_on_gpu(network: tvmconv.Network, module: Any, *inputs: Any, least: float, times: int = 1) -> None:
    """Compare a network with its module in float64: a least ratio of signal to noise, in dB, and each time the same."""
    results = [np.asarray(network(*(each.numpy() for each in inputs))) for _ in range(times)]
    expected = exact(module, *inputs).astype("float32")
    (found,) = verify.compare({"y": results[0]}, {"y": expected}, network.multiplied)
    assert found.agrees
    assert found.ratio > least
    assert all(np.array_equal(each, results[0]) for each in results)


def called_in_a_process(network: tvmconv.Network, x: np.ndarray, folder: Path) -> np.ndarray:
    """Return the results of three calls of a network in a process that ends with it, loaded from a folder."""
    network.export(folder / "network.so")
    np.save(folder / "x.npy", x)
    code = (
        "import sys, numpy, tvmconv;"
        "network = tvmconv.load(sys.argv[1]); x = numpy.load(sys.argv[2]);"
        "numpy.save(sys.argv[3], [network(x) for _ in range(3)])"
    )
    paths = [str(folder / name) for name in ("network.so", "x.npy", "y.npy")]
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    results: np.ndarray = np.load(paths[2])
    return results
