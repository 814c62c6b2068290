"""A convolution's operands as arrays of every kind that operators take, and in awkward memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm

from tvmconv import ConvWorkload
from tvmconv.runtime.arrays import from_numpy, to_numpy, to_torch
from tvmconv.testing import random_operands

torch = pytest.importorskip("torch")

WORKLOAD = ConvWorkload.depthwise((2, 6, 13, 15), (6, 2, 3, 3), stride=2, scale=True, shift=True, activation="relu6")
OPERANDS = random_operands(WORKLOAD)
OPTIONS: dict[str, Any] = {"stride": 2, "activation": "relu6"}


class OnlyDLPack:
    """An array of a library that tvmconv does not know, which has DLPack alone."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


KINDS: dict[str, tuple[Callable[[np.ndarray], Any], type, Callable[[Any], np.ndarray]]] = {
    "numpy": (lambda array: array, np.ndarray, lambda array: array),
    "torch": (to_torch, torch.Tensor, to_numpy),
    "tvm": (tvm.runtime.tensor, tvm.runtime.Tensor, lambda array: array.numpy()),
    "dlpack": (lambda array: OnlyDLPack(from_numpy(array)), tvm.runtime.Tensor, lambda array: array.numpy()),
}


def unaligned(array: np.ndarray) -> np.ndarray:
    """Return the same numbers at an address that no vector is aligned to."""
    buffer = np.empty(array.nbytes + 128, np.uint8)
    offset = -buffer.ctypes.data % 64 + array.itemsize
    copy = buffer[offset : offset + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def read_only(array: np.ndarray) -> np.ndarray:
    copy = array.copy()
    copy.flags.writeable = False
    return copy
