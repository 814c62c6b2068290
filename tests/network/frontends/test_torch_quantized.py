"""Programs of torch with the quantization that PT2E leaves in them: what becomes integers, and the numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.shared.sparing import in_turns, sparing

torch = pytest.importorskip("torch")
pytest.importorskip("torch.ao.quantization.fx._decomposed")

from torch.nn import functional as F  # noqa: E402, N812

ops = torch.ops.quantized_decomposed
X = (1, 16, 9, 8)
SCALE, ZERO = 0.05, 120


def rounded(y: Any, scale: float, zero: int = ZERO) -> Any:
    """Quantize a tensor to uint8 and dequantize it again."""
    limits = scale, zero, 0, 255, torch.uint8
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(y, *limits), *limits)


class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
    """A convolution of quantized numbers, with what is behind it up to the quantization of its result."""

    def __init__(self, behind: Callable[[Any, Any], Any], groups: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.behind, self.groups = behind, groups
        weight = torch.randint(-128, 128, (16, 16 // groups, 3, 3), generator=generator).to(torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scales", torch.linspace(0.002, 0.004, 16))
        self.register_buffer("zeros", torch.zeros(16, dtype=torch.int64))
        self.register_buffer("bias", torch.randn(16, generator=generator))

    def forward(self, x: Any) -> Any:
        x = rounded(x, SCALE)
        w = ops.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -128, 127, torch.int8)
        y = F.conv2d(x, w, self.bias, padding=1, groups=self.groups)
        return rounded(self.behind(y, x), 0.1, 30)


BEHIND: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "relu": (lambda y, x: F.relu(y), "scale+shift+relu+zero_point(30)"),
    "silu": (lambda y, x: F.silu(y), "scale+shift+silu+factor(10)+zero_point(30)"),
    "x-sigmoid-x": (lambda y, x: y * torch.sigmoid(y), "scale+shift+silu+factor(10)+zero_point(30)"),
    "residual": (lambda y, x: F.relu(y + x), "scale+shift+residual+relu+factor(0.5)+zero_point(30)"),
}


@pytest.mark.parametrize(
    ("name", "groups"),
    sparing(product(BEHIND, (1, 16)), in_turns),  # each once
)
def test_layer_in_integers(name: str, groups: int) -> None:
    behind, epilogue = BEHIND[name]
    module, x = Layer(behind, groups).eval(), torch.randn(X, generator=torch.Generator().manual_seed(5))
    network = tvmconv.build(tvmconv.import_model(torch.export.export(module, (x,))))
    (layer,) = network.layers
    assert layer.convolution.description.endswith(f"uint8 zero point 120 to uint8 + {epilogue}")
    got, expected = np.asarray(network(x.numpy())), module(x).numpy()
    # Sums of float32 may round the other way, by a step.
    assert np.abs(got - expected).max() <= 0.1001
    assert (np.abs(got - expected) > 0.05).mean() <= 0.02
