"""The report on a bound weight: multiply-adds removed and left, and the size of the code."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

INSTRUCTION_BYTES = 16
"""The bytes of an instruction of NVIDIA's GPUs from Volta on."""


@dataclass(frozen=True)
class SparseReport:
    """Counts of one compiled weight. Multiply-adds are those of one thread for each block of output channels."""

    weights: int
    nonzeros: int
    blocks: int
    """The number of blocks of output channels, each with separate code."""
    launches: int
    """The number of kernels that run one after the other; 0 for a CPU."""
    multiply_adds: int
    """The number of multiply-adds in the template, without those with zeros of groups."""
    left: int
    """The number of multiply-adds that are left, each with a weight as its immediate operand."""
    code_bytes: int
    """The bytes of machine code; 0 for a CPU."""

    @property
    def sparsity(self) -> float:
        """The share of zeros."""
        return 1 - self.nonzeros / self.weights

    @property
    def removed(self) -> int:
        """The number of multiply-adds that are gone."""
        return self.multiply_adds - self.left

    @property
    def instructions(self) -> int:
        """The number of machine instructions."""
        return self.code_bytes // INSTRUCTION_BYTES


def make_report(weight: np.ndarray, pixels: int, blocks: int, images: Sequence[bytes]) -> SparseReport:
    """Return the counts of a weight compiled for threads of `pixels` pixels, into these images."""
    nonzeros = int(np.count_nonzero(weight))
    return SparseReport(
        weights=weight.size,
        nonzeros=nonzeros,
        blocks=blocks,
        launches=len(images),
        multiply_adds=weight.size * pixels,
        left=nonzeros * pixels,
        code_bytes=sum(map(code_bytes, images)),
    )


def code_bytes(cubin: bytes) -> int:
    """Return the bytes of machine code in a cubin, which is an ELF file: its sections that can be executed."""
    (start,), (size, count) = struct.unpack_from("<Q", cubin, 0x28), struct.unpack_from("<HH", cubin, 0x3A)
    total = 0
    for number in range(count):
        flags, _, _, length = struct.unpack_from("<4Q", cubin, start + number * size + 8)
        total += length if flags & 0x4 else 0
    return total
