"""What schedules annotate loops with, and what lowering and sparse templates make of it."""

from __future__ import annotations

MIN_BLOCKS = "tvmconv.min_blocks"
"""Annotation of a loop of CUDA threads: so many blocks are to share a multiprocessor, and its registers."""

UNROLLED = "tvmconv.unrolled"
"""Annotation of a loop of a sparse convolution that is unrolled, with what it runs over: "k" for output channels, "c"
for the input channels that are staged, "other" for the rest."""

SHARES = "tvmconv.shares"
"""Annotation of the parallel loop of a CPU: in so many tasks for each turn, with a share of the blocks each."""

COPIED = "tvmconv.copied"
"""Annotation of a loop over staged channels: shared memory has room for so many chunks, which are copied ahead."""
