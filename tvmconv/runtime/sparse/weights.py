"""Weights in the forms that users have: arrays, sparse matrices, pruned modules of torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tvmconv.problem.constants import require_finite
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import pair

from ..arrays import is_torch

MEANING = "(K, C / groups, R, S), or (K, C / groups * R * S) with kernel=(R, S)"


@dataclass(frozen=True)
class Layer:
    """A weight (K, C / groups, R, S) in float32, with the settings of the module that it came from."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    options: dict[str, Any] | None = None
    """The stride, padding, dilation and groups; None for a bare weight."""


def as_layer(weight: Any, kernel: int | Sequence[int] | None) -> Layer:
    """Return a weight in any of the forms that `sparse_conv2d` takes as a layer."""
    kernel = None if kernel is None else pair("kernel", kernel)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(weight, torch.nn.Module):
        return Layer(_in_four(_array("weight", weight), kernel))
    if not isinstance(weight, torch.nn.Conv2d) or weight.padding_mode != "zeros":
        raise InvalidArgumentError("weight", weight, "of torch's modules a Conv2d that pads with zeros")
    padding = weight.padding.upper() if isinstance(weight.padding, str) else weight.padding
    options = {"stride": weight.stride, "padding": padding, "dilation": weight.dilation, "groups": weight.groups}
    bias = None if weight.bias is None else _array("weight", _pruned(weight, "bias"))
    return Layer(_in_four(_array("weight", _pruned(weight, "weight")), kernel), bias, options)


def vector(name: str, values: Any, channels: int) -> np.ndarray:
    """Return a finite vector of an epilogue, one number for each output channel, in float64."""
    array = _array(name, values).astype(np.float64)
    if array.shape != (channels,):
        raise InvalidArgumentError(name, array.shape, f"the shape {(channels,)}: a number for each output channel")
    return require_finite(name, array)


def _pruned(module: Any, name: str) -> Any:
    """Return a parameter as `torch.nn.utils.prune` leaves it: the module's own may be stale until the next call."""
    if hasattr(module, f"{name}_mask"):
        return getattr(module, f"{name}_orig") * getattr(module, f"{name}_mask")
    return getattr(module, name)


def _array(name: str, values: Any) -> np.ndarray:
    """Return numbers as a NumPy array, with the zeros that sparse formats leave out."""
    scipy = sys.modules.get("scipy.sparse")
    if scipy is not None and scipy.issparse(values):
        values = values.toarray()
    elif is_torch(values):
        values = values.detach().to_dense().cpu()
        values = (values if values.dtype == sys.modules["torch"].float64 else values.float()).numpy()
    elif not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__"):
        values = np.from_dlpack(values)
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InvalidArgumentError(name, f"{type(values).__name__} of {array.dtype}", "real numbers")
    return array


def _in_four(array: np.ndarray, kernel: tuple[int, int] | None) -> np.ndarray:
    if array.ndim == 2 and kernel is not None:
        if min(kernel) < 1 or array.shape[1] % prod(kernel):
            raise InvalidArgumentError("kernel", kernel, f"(R, S) whose product divides {array.shape[1]}")
        array = array.reshape(len(array), -1, *kernel)
    if array.ndim != 4 or (kernel is not None and array.shape[2:] != kernel) or not array.size:
        raise InvalidArgumentError("weight", f"of shape {array.shape} with kernel {kernel}", MEANING)
    return require_finite("weight", array)
