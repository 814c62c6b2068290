"""The assumptions of the schedules about every GPU; `targets.devices` has the properties that differ."""

from collections import Counter
from collections.abc import Set

from tvmconv.compute.gradients.weight_planes import BANKS

SHARED_ALIGNMENT = 64
"""The bytes to which TVM aligns each buffer in shared memory."""

REUSED = 16
"""The largest size of a buffer in shared memory, as a multiple of a later buffer's size, for which TVM reuses its
memory."""

QUARTERS = 4
"""The number of parts of a multiprocessor, each with a quarter of the registers and every fourth warp of a block."""

PRODUCTS = 16 * 8 * 16
"""The multiply-adds of an `mma` of half precision, which takes as long as one of TF32 with half the multiply-adds."""

REGISTERS = 65536
"""The number of 32-bit registers of a multiprocessor, which its blocks share."""

MAX_REGISTERS = 255
"""The number of registers that a thread may have."""

BLOCK_BYTES = 1024
"""The bytes of shared memory that each block takes besides those that its kernel asks for."""

SUM_BYTES = 4
"""The bytes of a float32 sum; numbers of fewer bytes are converted to it."""

SECTOR = 32
"""The least number of bytes that a cache gets from memory."""

LINE = 128
"""The bytes of a line of a cache, of four sectors."""

WORD = 4
"""The bytes of a word, of which a bank of shared memory gives one at a time."""

CODE = 4096
"""The number of instructions that the caches of code hold."""


def bank_reads(words: Set[int]) -> int:
    """Return the number of reads of the busiest bank of shared memory, for different words given by their addresses."""
    return max(Counter(word % BANKS for word in words).values())


def fetched_code(instructions: float) -> float:
    """Return the instructions of a thread that has no loops, counting those twice that caches of code do not hold.

    Each warp fetches these from memory.
    """
    return instructions + max(0.0, instructions - CODE)
