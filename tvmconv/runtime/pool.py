"""The memory of large arrays on a CPU, which is kept for those that follow.

The system fills new pages with zeros, which takes longer than many a convolution that then writes to them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

LEAST_BYTES = 2**22
"""The bytes from which arrays are pooled, and from which NumPy asks for huge pages, as torch does not.

A store to a new small page costs more than the convolution of its content.
"""

MAX_FREE_BYTES = 2**28
"""The most bytes that are kept while no array is in them."""


class Block:
    """Memory for one array, which NumPy and torch refer to as long as they use it; then it is given back."""

    def __init__(self, memory: np.ndarray, give_back: Callable[[np.ndarray], None]) -> None:
        self._memory, self._give_back = memory, give_back
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._give_back(self._memory)


class Pool:
    """Memory blocks that no array uses, the block first that was given back first.

    Blocks are given back at any moment, also while this code runs: so each step is a single operation of a dictionary.
    """

    def __init__(self) -> None:
        self._free: dict[int, np.ndarray] = {}

    def empty(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        """Return a new array of a type of NumPy, in a block of equal size that was given back, if there is one."""
        kind = np.dtype(dtype)
        nbytes = prod(shape) * kind.itemsize
        of_size = [address for address, memory in self._free.copy().items() if memory.nbytes == nbytes]
        popped = (self._free.pop(address, None) for address in reversed(of_size))
        memory = next((each for each in popped if each is not None), None)
        block = Block(np.empty(nbytes, np.uint8) if memory is None else memory, self._give_back)
        array: np.ndarray = np.asarray(block).view(kind).reshape(shape)
        return array

    def _give_back(self, memory: np.ndarray) -> None:
        self._free[memory.__array_interface__["data"][0]] = memory
        kept = self._free.copy()
        surplus = sum(each.nbytes for each in kept.values()) - MAX_FREE_BYTES
        for address, each in kept.items():
            if surplus > 0 and self._free.pop(address, None) is not None:
                surplus -= each.nbytes


LARGE = Pool()
"""The memory that all operators share."""
