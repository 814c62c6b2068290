"""Activations of torch and ONNX in networks: those that end in kernels, however they are written, and their numbers."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.shared.passes import use_kernels
from tests.shared.sparing import every, sparing
from tvmconv.network import build, import_model
from tvmconv.network.passes.early.matrices import with_rows_in_matrices
from tvmconv.problem import Epilogue
from tvmconv.problem.activations import clip, resolve_activation
from tvmconv.targets import resolve_target
from tvmconv.testing.trials import EVERY_ACTIVATION

torch = pytest.importorskip("torch")
pytest.importorskip("onnx")
from tests.shared.network_graph import operators  # noqa: E402

nn = torch.nn


class Activated(nn.Module):  # type: ignore[misc]
    """A convolution with an activation behind it, by torch's function."""

    def __init__(self, activation: Any) -> None:
        super().__init__()
        self.body = nn.Conv2d(2, 4, 1)
        self.row, self.values = resolve_activation(activation)

    def forward(self, x: Any) -> Any:
        if self.row.definition is clip and not self.row.fixed:
            return torch.clamp(self.body(x), *self.values)
        given = () if self.row.fixed else self.values
        return getattr(nn.functional, self.row.torch)(self.body(x), *given, **self.row.options)


SOURCES = ("torch", "onnx-11", "onnx-17", "onnx-20")


def imported(module: Any, x: Any, source: str) -> Any:
    """Import a module as torch exports it, or as ONNX of an opset."""
    if source == "torch":
        return import_model(module, (x,))
    file = io.BytesIO()
    opset = int(source.removeprefix("onnx-"))
    torch.onnx.export(module, (x,), file, opset_version=opset, dynamo=False)
    return import_model(file.getvalue())


def left(model: Any) -> set[str]:
    """Return the operators that are left beside kernels."""
    mod, _ = use_kernels(model.mod, resolve_target("llvm"))
    return set(operators(mod)) - {"relax.call_tir"}


def in_float32(epilogue: Epilogue) -> tuple[Any, ...]:
    """Return what an epilogue has, with the activation's parameters in float32, as ONNX holds them."""
    parameters = [None if value is None else np.float32(value) for value in epilogue.parameters]
    return str(epilogue.without_activation()), epilogue.row.name, parameters


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("activation", "source", "dtype"),
    every(5, product(EVERY_ACTIVATION, SOURCES, (torch.float32, torch.float16))),
    ids=str,
)
def test_activation_is_fused(activation: Any, source: str, dtype: Any) -> None:
    module = Activated(activation).eval().to(dtype)
    model = imported(module, torch.zeros(1, 2, 4, 4, dtype=dtype), source)
    expected = in_float32(Epilogue.of(activation, shift=True))
    assert [in_float32(found.workload.epilogue) for found in model.convolutions()] == [expected]
    assert left(model) == set()


class Gelu(nn.Module):  # type: ignore[misc]
    """GELU by tanh as models write it themselves."""

    def __init__(self, curve: Callable[[Any], Any]) -> None:
        super().__init__()
        self.curve = curve

    def forward(self, x: Any) -> Any:
        return 0.5 * x * (1.0 + torch.tanh(self.curve(x)))


CURVES = {
    "gpt2": lambda x: math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0)),
    "fast": lambda x: x * 0.7978845608 * (1.0 + 0.044715 * x * x),
    "bert": lambda x: 0.7978845608 * x + 0.035677408 * x**3,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["torch", *CURVES])
@pytest.mark.parametrize("source", ["torch", "onnx-20"])
def test_gelu_by_tanh_is_fused_into_linear_layers(name: str, source: str) -> None:
    activation = Gelu(CURVES[name]) if name in CURVES else nn.GELU(approximate="tanh")
    model = imported(nn.Sequential(nn.Linear(24, 40), activation).eval(), torch.zeros(1, 5, 24), source)
    for target in ("llvm", {"kind": "cuda", "arch": "sm_90"}):
        resolved = resolve_target(target)
        mod, layers = use_kernels(with_rows_in_matrices(model.mod, resolved), resolved)
        assert [str(layer.convolution.workload.epilogue) for layer in layers] == ["shift+gelu_tanh"]
        assert set(operators(mod)) <= {"relax.call_tir", "relax.reshape"}


class Squeeze(nn.Module):  # type: ignore[misc]
    """A module that multiplies x by a factor for each channel, which is computed from x."""

    def __init__(self, channels: int, activation: Any, gate: Any) -> None:
        super().__init__()
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, 4, 1), activation, nn.Conv2d(4, channels, 1), gate
        )

    def forward(self, x: Any) -> Any:
        return x * self.factors(x)


class Inverted(nn.Module):  # type: ignore[misc]
    """A block of MobileNetV3 or EfficientNet with the given activations."""

    def __init__(self, activation: Any, squeezed: Any, gate: Any) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 24, 1, bias=False),
            nn.BatchNorm2d(24),
            activation,
            nn.Conv2d(24, 24, 3, padding=1, groups=24, bias=False),
            nn.BatchNorm2d(24),
            activation,
            Squeeze(24, squeezed, gate),
            nn.Conv2d(24, 8, 1, bias=False),
            nn.BatchNorm2d(8),
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


class ConvNeXt(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(8, 8, 7, padding=3, groups=8), nn.Conv2d(8, 32, 1), nn.GELU(), nn.Conv2d(32, 8, 1)
        )

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


BLOCKS = {
    "mobilenet-v3": (
        lambda: Inverted(nn.Hardswish(), nn.ReLU(), nn.Hardsigmoid()),
        ["hardswish", "hardswish", "relu", "hardsigmoid", "residual"],
    ),
    "efficientnet": (
        lambda: Inverted(nn.SiLU(), nn.SiLU(), nn.Sigmoid()),
        ["silu", "silu", "silu", "sigmoid", "residual"],
    ),
    "convnext": (ConvNeXt, ["shift", "gelu", "residual"]),
    "yolo": (
        lambda: nn.Sequential(
            nn.Conv2d(8, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.SiLU(), nn.Conv2d(8, 8, 1), nn.LeakyReLU(0.1)
        ),
        ["silu", "leaky_relu"],
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "source"), sparing(product(BLOCKS, ("torch", "onnx-17")), lambda number: number % 4 in (0, 3))
)
def test_block_ends_in_kernels_with_its_activations(name: str, source: str) -> None:
    torch.manual_seed(0)
    make, expected = BLOCKS[name]
    module = make().eval()
    x = torch.randn(1, 8, 10, 12)
    network = build(imported(module, x, source))
    assert all(layer.kernel.startswith("tvmconv") for layer in network.layers)
    ends = [str(layer.convolution.workload.epilogue).split("+")[-1].split("(")[0] for layer in network.layers]
    assert ends == expected
    reference = module.double()(x.double()).detach().numpy()
    np.testing.assert_allclose(network(x.numpy()), reference, rtol=0, atol=4e-6 * np.abs(reference).max())


def test_a_network_computes_nan_and_infinities_as_torch_does() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32).reshape(1, 1, 2, 2)
    got = tvmconv.depthwise(x, np.ones((1, 1, 1, 1), np.float32), activation="silu")
    expected = nn.functional.silu(torch.from_numpy(x).double()).numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-6)
