"""The memory of an emulated GPU: bytes, addresses in them, copies under way, and the error of a hazard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

VECTOR = 16
"""The bytes of a copy, and of the pieces of shared memory that accesses are told apart by."""

NEVER = 1 << 30
"""The time of a write that has not arrived, or of a read that has not ended, in barriers."""


class HazardError(AssertionError):
    """An access to shared memory before what it conflicts with is complete for all threads."""


@dataclass
class Memory:
    """Rows of bytes: one for each block of shared memory, one for each thread of registers, and one of the GPU's."""

    bytes: np.ndarray
    row: np.ndarray
    """The row of each thread."""
    shared: bool = False
    start: np.ndarray = field(init=False)
    """The offset of each thread's row among all bytes."""
    written: np.ndarray = field(init=False)
    read: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        self.start = self.row * self.bytes.shape[1]
        pieces = self.bytes.shape[0], -(-self.bytes.shape[1] // VECTOR)
        self.written, self.read = np.full(pieces, NEVER), np.full(pieces, -1)


@dataclass
class Pointer:
    """Addresses, in bytes, of the elements of a type."""

    memory: Memory
    address: np.ndarray
    dtype: np.dtype[Any]


@dataclass
class Copies:
    """The copies of an asynchronous group, until it is complete."""

    writes: list[tuple[Memory, np.ndarray, np.ndarray, np.ndarray]] = field(default_factory=list)
