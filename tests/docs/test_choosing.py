"""The page on which models run: small ones of its kinds have kernels or are refused, and its snippet runs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.shared.pages import snippets

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tests.shared.sparing import in_turns, sparing
from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.targets import resolve_target

PAGE = (Path(__file__).parents[2] / "docs" / "choosing.md").read_text()
TARGETS: dict[str, Any] = {"CPU": "llvm", "GPU": {"kind": "cuda", "arch": "sm_90"}}


class Forward(nn.Module):
    """Layers, with a function that calls them by their indices."""

    def __init__(self, call: Callable[[nn.ModuleList, Tensor], Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.layers, self.call = nn.ModuleList(layers), call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layers, x)


def unit(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU())


def detector(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Return boxes and scores of two scales, with pooled pyramids and resizing between."""
    near = layers[0](x)
    far = layers[1](near)
    pooled = [far]
    for _ in range(3):
        pooled.append(functional.max_pool2d(pooled[-1], 5, 1, 2))
    far = layers[2](torch.cat(pooled, 1))
    near = layers[3](torch.cat([near, functional.interpolate(far, scale_factor=2.0)], 1))
    boxes, scores = torch.cat([layers[4](near).flatten(2), layers[5](far).flatten(2)], 2).split([4, 3], 1)
    return torch.cat([boxes, scores.sigmoid()], 1)


def segmentation(layers: nn.ModuleList, x: Tensor) -> Tensor:
    y = layers[0](x)
    mean = functional.interpolate(layers[3](y.mean((2, 3), keepdim=True)), y.shape[2:], mode="bilinear")
    y = layers[4](torch.cat([layers[1](y), layers[2](y), mean], 1))
    return functional.interpolate(y, x.shape[2:], mode="bilinear").softmax(1)


def decoder(layers: nn.ModuleList, x: Tensor) -> Tensor:
    """Return an image of twice the height and width."""
    y = layers[0](x)
    y = y + layers[2](functional.silu(layers[1](y)))
    return layers[3](functional.interpolate(y, scale_factor=2.0, mode="nearest"))


def vocoder(layers: nn.ModuleList, x: Tensor) -> Tensor:
    y = layers[1](functional.leaky_relu(layers[0](x), 0.1))
    return layers[3](y + layers[2](functional.leaky_relu(y, 0.1))).tanh()


KINDS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "YOLO-like detectors": (
        Forward(
            detector,
            *(unit(3, 8, stride=2), unit(8, 16, stride=2), unit(64, 16, 1), unit(24, 8)),
            *(nn.Conv2d(8, 7, 1), nn.Conv2d(16, 7, 1)),
        ),
        (1, 3, 32, 32),
    ),
    "segmentation with dilated convolutions": (
        Forward(
            segmentation,
            *(unit(3, 8, stride=2), nn.Conv2d(8, 8, 3, padding=3, dilation=3)),
            *(nn.Conv2d(8, 8, 1), nn.Conv2d(8, 4, 1), nn.Conv2d(20, 5, 1)),
        ),
        (1, 3, 32, 32),
    ),
    "decoders of VAEs": (
        Forward(
            decoder,
            *(nn.Conv2d(4, 16, 3, padding=1), nn.GroupNorm(4, 16)),
            *(nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 3, 3, padding=1)),
        ),
        (1, 4, 16, 16),
    ),
    "vocoders": (
        Forward(
            vocoder,
            *(nn.Conv1d(20, 16, 7, padding=3), nn.ConvTranspose1d(16, 8, 8, 4, 2)),
            *(nn.Conv1d(8, 8, 3, padding=5, dilation=5), nn.Conv1d(8, 1, 7, padding=3)),
        ),
        (1, 20, 32),
    ),
}
"""Small models by words of their row in the table, each with the shape of its input."""


@pytest.mark.parametrize(("kind", "device"), sparing(list(product(KINDS, TARGETS)), in_turns))
def test_kinds_have_kernels(kind: str, device: str) -> None:
    module, shape = KINDS[kind]
    assert kind in PAGE
    model = tvmconv.import_model(module.eval(), (torch.randn(shape),))
    _, layers = use_kernels(model.mod, resolve_target(TARGETS[device]))
    assert len(layers) >= 3
    assert [layer.reason for layer in layers if not layer.kernel.startswith("tvmconv")] == []


def test_selection_of_boxes() -> None:
    """A CPU computes it; for a GPU it is refused by its name."""
    graph = Graph((1, 8, 4))
    scores, most = graph.random(1, 1, 8), graph.constant([4], "int64")
    selected = graph.node("NonMaxSuppression", "x", scores, most, graph.constant([0.5]), graph.constant([0.1]))
    model = graph.model(graph.node("Cast", selected, to=1))
    assert tvmconv.build(model, "llvm").layers == ()
    with pytest.raises(UnsupportedModelError, match="non_max_suppression"):
        tvmconv.build(model, TARGETS["GPU"])


def test_snippet() -> None:
    (snippet,) = snippets(PAGE)
    exec(compile(snippet, "choosing.md", "exec"), {})
