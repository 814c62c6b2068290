"""Depthwise convolutions of torch that tests try with gradients, on any device, and the comparison with float64."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tvmconv.nn import functional  # noqa: E402

Tensor = Any

DTYPES = (torch.float32, torch.float16, torch.bfloat16)

ROUNDING = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""The largest error of a result, as a share of the largest number in the exact one."""


@dataclass(frozen=True)
class Layer:
    """The shapes and options of a convolution."""

    x: tuple[int, ...]
    w: tuple[int, ...]
    bias: bool = True
    stride: Any = 1
    padding: Any = 0
    dilation: Any = 1

    @property
    def options(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation}

    def tensors(self, dtype: Any = torch.float32, device: str = "cpu") -> list[Tensor]:
        """Return x, the weight and, if there is one, the bias, which require gradients."""
        torch.manual_seed(0)
        shapes = (self.x, self.w, self.w[:1])[: 2 + self.bias]
        return [torch.randn(shape).to(device, dtype).requires_grad_() for shape in shapes]

    def convolve(self, *tensors: Tensor) -> Tensor:
        """Return the result of tvmconv."""
        function = functional.depthwise_conv1d if len(self.w) == 3 else functional.depthwise_conv2d
        return function(*tensors, **self.options)

    def reference(self, x: Tensor, *others: Tensor) -> Tensor:
        """Return torch's result."""
        function = torch.nn.functional.conv1d if len(self.w) == 3 else torch.nn.functional.conv2d
        options = {**self.options, "groups": self.x[len(self.x) - len(self.w) + 1]}
        if isinstance(self.padding, tuple) and len(self.padding) == 4:
            top, left, bottom, right = self.padding
            x, options["padding"] = torch.nn.functional.pad(x, (left, right, top, bottom)), 0
        return function(x, *others, **options)


LAYERS: Mapping[str, Layer] = {
    "3x3": Layer((3, 6, 14, 15), (6, 1, 3, 3), padding=1),
    "same-4x2": Layer((1, 5, 9, 10), (5, 1, 4, 2), padding="same", dilation=(1, 2)),
    "valid": Layer((2, 3, 9, 9), (3, 1, 5, 5), bias=False, padding="valid"),
    "stride-2": Layer((2, 8, 15, 16), (8, 1, 3, 3), stride=2, padding=1),
    "stride-3x2": Layer((3, 4, 17, 16), (4, 1, 5, 3), stride=(3, 2), padding=(0, 2)),
    "dilation-2-stride-2": Layer((1, 4, 19, 18), (4, 1, 3, 3), stride=2, padding=2, dilation=2),
    "multiplier-3": Layer((2, 4, 11, 12), (12, 1, 3, 3), padding=1),
    "multiplier-2-stride-2": Layer((2, 4, 11, 12), (8, 1, 3, 5), bias=False, stride=2, padding=(1, 2)),
    "asymmetric": Layer((2, 3, 12, 11), (3, 1, 3, 3), stride=(1, 2), padding=(2, 0, 1, 3)),
    "padding-past-kernel": Layer((2, 3, 6, 5), (3, 1, 2, 2), padding=3),
    "no-batch": Layer((4, 9, 8), (4, 1, 3, 3), padding=1),
    "one-channel": Layer((2, 1, 9, 8), (2, 1, 3, 3), padding=1),
    "row": Layer((2, 6, 50), (6, 1, 7), stride=2, padding=3),
    "row-causal": Layer((3, 6, 33), (12, 1, 4), dilation=2, padding="same"),
    "row-no-batch": Layer((6, 33), (6, 1, 3), padding=(1,)),
}


def check(layer: Layer, dtype: Any = torch.float32, device: str = "cpu", like: Any = torch.randn_like) -> None:
    """Compare a layer's result and its gradients with torch's in float64."""
    tensors = layer.tensors(dtype, device)
    exact = [tensor.detach().double().requires_grad_() for tensor in tensors]
    result, expected = layer.convolve(*tensors), layer.reference(*exact)
    outer = like(result)
    results = [result, *torch.autograd.grad(result, tensors, outer)]
    for got, want in zip(results, [expected, *torch.autograd.grad(expected, exact, outer.double())], strict=True):
        assert (got.dtype, got.device.type) == (dtype, device)
        assert_close(got, want)


def assert_close(got: Tensor, want: Tensor) -> None:
    """Compare a result with the exact one by `ROUNDING`."""
    assert got.shape == want.shape
    bound = ROUNDING[got.dtype] * float(want.detach().abs().max())
    torch.testing.assert_close(got.detach().double(), want.detach(), rtol=0, atol=bound)
