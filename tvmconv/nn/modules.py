"""Depthwise convolutions as modules, and functions that replace torch's modules in a model by these."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from .functional import depthwise_conv1d, depthwise_conv2d, depthwise_conv2d_same
from .operators import DTYPES

Size = int | tuple[int, ...]
Model = TypeVar("Model", bound=Any)


class _Depthwise:
    """The arguments of both modules; the number of groups is that of the input channels."""

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
    """A `torch.nn.Conv2d` with one group for each input channel, computed by `functional.depthwise_conv2d`.

    Its parameters and its state dict are those of torch's. It pads with zeros.

    >>> import torch
    >>> from tvmconv import nn
    >>> layer = nn.DepthwiseConv2d(32, 32, 3, padding=1)
    >>> y = layer(torch.randn(1, 32, 14, 14))
    >>> y.sum().backward()
    >>> y.shape, layer.weight.grad.shape
    (torch.Size([1, 32, 14, 14]), torch.Size([32, 1, 3, 3]))
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the convolution of (N, C, H, W) or (C, H, W)."""
        return depthwise_conv2d(input, self.weight, self.bias, self.stride, self.padding, self.dilation)


class DepthwiseConv1d(_Depthwise, torch.nn.Conv1d):  # type: ignore[misc]
    """A `torch.nn.Conv1d` with one group for each input channel, computed by `functional.depthwise_conv1d`.

    Its parameters and its state dict are those of torch's. It pads with zeros.

    >>> import torch
    >>> from tvmconv import nn
    >>> nn.DepthwiseConv1d(32, 32, 3, padding=1)(torch.randn(1, 32, 100)).shape
    torch.Size([1, 32, 100])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the convolution of (N, C, L) or (C, L)."""
        return depthwise_conv1d(input, self.weight, self.bias, self.stride, self.padding, self.dilation)


class DepthwiseConv2dSame(DepthwiseConv2d):
    """A `DepthwiseConv2d` that pads each input as TensorFlow's SAME, as timm's `Conv2dSame` does.

    Its argument `padding` is without effect.

    >>> import torch
    >>> from tvmconv import nn
    >>> nn.DepthwiseConv2dSame(32, 32, 3, stride=2)(torch.randn(1, 32, 15, 15)).shape
    torch.Size([1, 32, 8, 8])
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Return the convolution of (N, C, H, W) or (C, H, W): ceil(H / stride) rows and ceil(W / stride) columns."""
        return depthwise_conv2d_same(input, self.weight, self.bias, self.stride, self.dilation)


OURS: dict[type, type] = {torch.nn.Conv2d: DepthwiseConv2d, torch.nn.Conv1d: DepthwiseConv1d}
"""The modules that replace torch's."""

FORMER = "_replaced_class"
"""The attribute of a replaced module that has its former class, where that is not torch's."""


@dataclass(frozen=True)
class Replaced:
    """The depthwise layers of a model by their names, which are "" for a model that is a layer itself."""

    ours: tuple[str, ...]
    """The names of the layers that are tvmconv's."""
    others: Mapping[str, str]
    """The names of the other layers, each with the reason why `replace` leaves it."""

    def __str__(self) -> str:
        lines = [f"{len(self.ours)} of {len(self.ours) + len(self.others)} depthwise layers are tvmconv's"]
        return "\n".join([*lines, *(f"{name or 'the model'}: {reason}" for name, reason in self.others.items())])


def replace(model: Model) -> Model:
    """Make each depthwise `torch.nn.Conv2d` and `Conv1d` of a model a module of tvmconv; return the same model.

    Those are the ones with one group for each input channel (a single one, too) that pad with zeros, and timm's
    `Conv2dSame`. Parameters, hooks and the state dict stay what they are, so an optimizer that has them goes on. Other
    depthwise layers stay, which a warning says; `replaced` lists both kinds. `restore` makes the model torch's again.

    >>> import torch
    >>> from tvmconv import nn
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 16, 1))
    >>> print(nn.replaced(nn.replace(model)))
    1 of 1 depthwise layers are tvmconv's
    """
    for _, module in _depthwise(model):
        if _obstacle(module) is not None:
            continue
        former = type(module)
        if former not in OURS:
            setattr(module, FORMER, former)
        module.__class__ = OURS.get(former, DepthwiseConv2dSame)
    report = replaced(model)
    if report.others:
        warnings.warn(f"replace: {report}", stacklevel=2)
    return model


def restore(model: Model) -> Model:
    """Make each layer of tvmconv in a model one of the class that `replace` found; return the same model.

    Parameters, hooks and the state dict stay what they are.

    >>> import torch
    >>> import tvmconv.nn
    >>> model = tvmconv.nn.replace(torch.nn.Conv2d(8, 8, 3, groups=8))
    >>> type(tvmconv.nn.restore(model)) is torch.nn.Conv2d
    True
    """
    for _, module in _depthwise(model):
        if not isinstance(module, _Depthwise):
            continue
        former = vars(module).pop(FORMER, None)
        if former is None:
            if isinstance(module, DepthwiseConv2dSame):
                continue  # torch has no such layer
            former = torch.nn.Conv1d if isinstance(module, DepthwiseConv1d) else torch.nn.Conv2d
        module.__class__ = former
    return model


def replaced(model: torch.nn.Module) -> Replaced:
    """Return which depthwise layers of a model are tvmconv's, and why others are not.

    >>> import torch
    >>> import tvmconv.nn
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 16, 1))
    >>> tvmconv.nn.replaced(tvmconv.nn.replace(model)).ours
    ('0',)
    """
    layers = list(_depthwise(model))
    ours = tuple(name for name, module in layers if isinstance(module, _Depthwise))
    others = {name: _obstacle(module) for name, module in layers if not isinstance(module, _Depthwise)}
    return Replaced(ours, {name: reason or "replace has not been called" for name, reason in others.items()})


def _depthwise(model: torch.nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the depthwise layers of a model, with their names.

    Layers of one channel are among them if they are one- or two-dimensional, and layers whose channels are not known
    yet if they have groups.
    """
    for name, module in model.named_modules():
        if not isinstance(module, _ConvNd):
            continue
        has_groups = module.groups > 1
        is_depthwise = module.groups == module.in_channels or (has_groups and _is_lazy(module))
        if is_depthwise and (has_groups or isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d))):
            yield name, module


def _obstacle(module: Any) -> str | None:
    """Return why a depthwise layer of torch cannot be one of tvmconv; None where it can."""
    kind = type(module)
    if _is_lazy(module):
        return "its channels are not known yet: call the model once before"
    if kind not in OURS and not _pads_same(module):
        if not isinstance(module, (torch.nn.Conv1d, torch.nn.Conv2d)):
            return f"there is no such layer for {kind.__name__}"
        return f"{kind.__name__} is a class of its own, whose forward may do more than torch's"
    if module.padding_mode != "zeros":
        return f"it pads by {module.padding_mode!r}, not with zeros"
    if module.weight.dtype not in DTYPES:
        return f"it is of {module.weight.dtype}"
    return None


def _pads_same(module: Any) -> bool:
    """Return whether a module is timm's Conv2d that computes its padding; its name tells, as timm may be missing."""
    return type(module).__name__ == "Conv2dSame" and isinstance(module, torch.nn.Conv2d)


def _is_lazy(module: Any) -> bool:
    """Return whether a layer gets its channels from the first input."""
    return isinstance(module, torch.nn.modules.lazy.LazyModuleMixin)
