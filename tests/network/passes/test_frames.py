"""Convolutions of one channel whose windows overlap by whole steps, which networks compute with steps as channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.shared.network_graph import Graph
from tvmconv.network import build, import_model


@dataclass(frozen=True)
class Case:
    """A convolution: its output channels, the elements of its window and its step, and the model's input."""

    name: str
    outputs: int
    length: int
    step: int
    shape: tuple[Any, ...]
    has_steps: bool = True
    """True if steps become channels."""
    padding: int = 0

    def __str__(self) -> str:
        return self.name


CASES = (
    Case("fourier", 34, 32, 16, (1, 1, 100)),
    Case("whole-windows", 16, 24, 24, (2, 1, 96)),
    Case("one-window", 20, 32, 8, (3, 1, 32)),
    Case("open", 34, 32, 16, ("n", 1, "samples")),
    Case("uneven", 20, 33, 16, (1, 1, 100), has_steps=False),
    Case("padded", 20, 32, 16, (1, 1, 100), has_steps=False, padding=3),
    Case("few-outputs", 4, 32, 16, (1, 1, 100), has_steps=False),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_frames(case: Case) -> None:
    graph = Graph(case.shape)
    pads = [case.padding] * 2
    y = graph.conv("x", (case.outputs, 1, case.length), bias=True, strides=[case.step], pads=pads)
    network = build(import_model(graph.model(y)))
    weight, bias = (np.frombuffer(each.raw_data, "float32").reshape(each.dims) for each in graph.weights)
    (layer,) = network.layers
    workload = layer.convolution.workload
    assert workload is not None
    assert workload.in_channels == (case.step if case.has_steps else 1)
    for sizes in [(1, 32), (2, 47), (3, 200)] if "samples" in case.shape else [(case.shape[0], case.shape[2])]:
        x = np.random.default_rng(5).standard_normal((sizes[0], 1, sizes[1])).astype("float32")
        padded = np.pad(x[:, 0].astype("float64"), [(0, 0), (case.padding, case.padding)])
        frames = np.lib.stride_tricks.sliding_window_view(padded, case.length, axis=1)[:, :: case.step]
        expected = np.einsum("ntk,ck->nct", frames, weight[:, 0]) + bias[:, None]
        np.testing.assert_allclose(network(x), expected, rtol=0, atol=2e-5)
