"""The annotations that schedules put on loops for lowering and sparse templates."""

from __future__ import annotations

MIN_BLOCKS = "tvmconv.min_blocks"
"""The annotation of a loop of CUDA threads: so many blocks are to share a multiprocessor and its registers."""

UNROLLED = "tvmconv.unrolled"
"""The annotation of an unrolled loop of a sparse convolution; its value says what the loop runs over.

"k" stands for output channels, "c" for the input channels that are staged, "other" for the rest.
"""

SHARES = "tvmconv.shares"
"""The annotation of the parallel loop of a CPU: the number of tasks for each turn, with a share of the blocks each."""

COPIED = "tvmconv.copied"
"""The annotation of a loop over staged channels: the number of chunks in shared memory, which are copied ahead."""
