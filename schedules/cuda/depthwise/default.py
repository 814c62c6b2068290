"""The configurations of depthwise convolutions on CUDA that may take the place of the usual one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, evenly, wasted
from .tiles import LEAST, Config, whole_planes

MARGIN = 1.2
"""The least ratio, by the model, of the usual configuration's time to the best candidate's for that to replace it.

On layers of MobileNet and ConvNeXt at batch 32 and 128 on an H100 the model told a gain of up to 1.18 where the
replaced one was faster. With this margin the defaults of 92 random workloads take 1.14 times as long as the best that
was measured, and the usual ones 1.39 times (benchmarks/defaults-h100.jsonl.gz).
"""

CANDIDATE_THREADS = (64, 128)
"""The most threads of a candidate's block, as most configurations have that are within 8% of the best in that log."""

MOST_THREADS = 256
"""The most threads of a block for a whole plane: no such configuration with more was that near the best."""

OUTPUTS = 32
"""The most outputs of a thread, as a space has, too."""

CANDIDATE_WASTE = 1.3
"""The largest ratio of computed to wanted outputs of a candidate."""


def candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Yield configurations whose threads have one tile each, without vthreads; not all are legal."""
    (height, width), m, most = workload.output_size, workload.multiplier, 16 // workload.itemsize
    ways = (False, False), (True, False), (False, True)  # the window in registers, from shared memory, whole planes
    tiles = product((1, 2, 3, 4, 6, 7, 8), (1, 2, 4, 7, 8), {1, m}, ways)
    for row, columns, siblings, (shared, flat) in tiles:
        if row > height or columns > (width if flat else min(width, most)) or row * columns * siblings > OUTPUTS:
            continue
        store = _vector(most, width, 0 if flat else columns)
        across, down = ceil_div(width, columns), ceil_div(height, row)
        for threads_x in {across} if flat else {evenly(across, n) for n in (64, 32, 16)}:
            staged = 0 if flat else workload.stride[1] * columns * (threads_x if shared else 1)
            load = _vector(most, workload.width, staged)
            for threads_y in {down} if flat else {evenly(down, max(1, n // threads_x)) for n in CANDIDATE_THREADS}:
                waste = wasted(height, row * threads_y) * wasted(width, columns * threads_x)
                if threads_y * threads_x > MOST_THREADS or waste > CANDIDATE_WASTE:
                    continue
                for room in {max(1, n // (threads_x * threads_y)) for n in CANDIDATE_THREADS}:
                    yield replace(
                        LEAST,
                        planes=max(whole_planes(workload, min(64, room * siblings))),
                        threads_y=threads_y,
                        threads_x=threads_x,
                        thread_y=row,
                        thread_x=columns,
                        store=store,
                        unroll=2,
                        shared_input=shared,
                        shared_filter=not shared,
                        load=load,
                        siblings=siblings,
                        flat=flat,
                    )


def _vector(most: int, *extents: int) -> int:
    """Return the longest vector, in elements, that divides the extents."""
    return next(n for n in (8, 4, 2, 1) if n <= most and all(extent % n == 0 for extent in extents))
