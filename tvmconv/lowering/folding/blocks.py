"""The choice of output channels that share a block: similar lengths of code, and common input elements."""

from __future__ import annotations

import numpy as np


def output_blocks(weight: np.ndarray, channels: int) -> list[list[int]]:
    """Return the output channels of a weight (K, C, R, S) in blocks of at most so many, each in ascending order.

    Blocks have about as many weights each: a channel goes to the one with the fewest so far, largest channels first,
    and among equals to the one that reads most of its input elements already. Where one block has room for all, or
    where they come out no better, channels stay with their neighbours, which are stored side by side.
    """
    nonzero = weight.reshape(len(weight), -1) != 0
    sizes = nonzero.sum(axis=1)
    count = -(-len(weight) // channels)
    neighbours = [list(range(first, min(first + channels, len(weight)))) for first in range(0, len(weight), channels)]
    blocks: list[list[int]] = [[] for _ in range(count)]
    loads, reads = np.zeros(count, int), np.zeros((count, nonzero.shape[1]), bool)
    for k in np.argsort(-sizes, kind="stable").tolist():
        room = [number for number in range(count) if len(blocks[number]) < channels]
        best = min(room, key=lambda number: (loads[number], -int((reads[number] & nonzero[k]).sum())))
        blocks[best].append(k)
        loads[best] += sizes[k]
        reads[best] |= nonzero[k]
    balanced = [sorted(block) for block in blocks]
    return min(neighbours, balanced, key=lambda each: max(int(sizes[block].sum()) for block in each))
