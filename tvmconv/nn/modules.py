"""Depthwise convolutions as modules, and their place in models that have torch's."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor

from .functional import depthwise_conv1d, depthwise_conv2d

Size = int | tuple[int, ...]
Model = TypeVar("Model", bound=Any)


class _Depthwise:
    """The arguments of both modules, which leave the number of groups to them."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: str | Size = 0,
        dilation: Size = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        options: dict[str, Any] = {"groups": in_channels, "bias": bias, "device": device, "dtype": dtype}
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, dilation, **options)  # type: ignore[call-arg]


class DepthwiseConv2d(_Depthwise, torch.nn.Conv2d):  # type: ignore[misc]
    """A `torch.nn.Conv2d` with as many groups as input channels, computed by `functional.depthwise_conv2d`.

    Its parameters and its state dict are those of torch's. It pads with zeros.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the convolution of (N, C, H, W) or (C, H, W)."""
        return depthwise_conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation)


class DepthwiseConv1d(_Depthwise, torch.nn.Conv1d):  # type: ignore[misc]
    """A `torch.nn.Conv1d` with as many groups as input channels, computed by `functional.depthwise_conv1d`.

    Its parameters and its state dict are those of torch's. It pads with zeros.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the convolution of (N, C, L) or (C, L)."""
        return depthwise_conv1d(input, self.weight, self.bias, self.stride, self.padding, self.dilation)


OURS: dict[type, type] = {torch.nn.Conv2d: DepthwiseConv2d, torch.nn.Conv1d: DepthwiseConv1d}
"""The modules that take the place of torch's."""


def replace(model: Model) -> Model:
    """Make each depthwise `torch.nn.Conv2d` and `Conv1d` of a model one of tvmconv, in place; return the model.

    Those are the ones with as many groups as input channels that pad with zeros. Parameters, hooks and the state dict
    stay what they are, so an optimizer that has them goes on; modules of other classes, derived ones too, stay.
    """
    for module in model.modules():
        ours = OURS.get(type(module))
        if ours is not None and module.groups == module.in_channels and module.padding_mode == "zeros":
            module.__class__ = ours
    return model
