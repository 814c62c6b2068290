"""The configurations that the default of depthwise convolutions on CUDA is chosen from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

from ...space import ceil_div, evenly, wasted
from .tiles import LEAST, Config, whole_planes

BLOCK_THREADS = (64, 128)
"""The limits of the threads of a block, as most configurations have that were within 8% of the best on an H100."""

MAX_THREADS = 256
"""The most threads of a block that copies whole planes: those with more were never within 8% of the best."""

OUTPUTS = 32
"""The most outputs of a thread, here and in the space of configurations."""

ROW_OUTPUTS = 16
"""The most outputs of a thread, in each channel, for planes of one row: more take many registers for windows."""

MAX_WASTE = 1.3
"""The largest ratio of computed to wanted outputs, where the size of planes is known."""

UNROLLED = ((False, 2, False), (True, 2, False), (False, 2, True))
"""The ways to read a window, as values of `shared_input`, `unroll` and `flat`: in registers, from shared memory, and
from whole planes in shared memory."""

ROLLED = ((True, 1, False), (True, 0, False), (False, 0, False))
"""The ways to read windows that cannot be unrolled as a whole."""


def candidates(problem: Problem, ways: tuple[tuple[bool, int, bool], ...]) -> Iterator[Config]:
    """Yield configurations that read windows in one of some ways; not all are legal."""
    workload = problem.workload
    if workload.height == 1 and not problem.has_open_planes and ways == UNROLLED:
        yield from _of_rows(workload)
    any_width, (height, width), m = "width" in problem.open_sizes, workload.output_size, workload.multiplier
    limit = 16 // workload.itemsize
    for row, columns, siblings, way in product((1, 2, 3, 4, 6, 7, 8), (1, 2, 4, 7, 8), {1, m}, ways):
        shared, unroll, flat = way
        if row > height or columns > (width if flat else min(width, limit)) or row * columns * siblings > OUTPUTS:
            continue
        if flat and row * columns * siblings == 1:
            continue  # a thread would stage the output that it stores itself
        store = 1 if any_width else _vector(limit, width, 0 if flat else columns)
        across, down = ceil_div(width, columns), ceil_div(height, row)
        for threads_x in {across} if flat else {evenly(across, n) for n in (64, 32, 16)}:
            staged = 0 if flat else workload.stride[1] * columns * (threads_x if shared else 1)
            load = 1 if any_width else _vector(limit, workload.width, staged)
            for threads_y in {down} if flat else {evenly(down, max(1, n // threads_x)) for n in BLOCK_THREADS}:
                waste = wasted(height, row * threads_y) * wasted(width, columns * threads_x)
                if threads_y * threads_x > MAX_THREADS or (waste > MAX_WASTE and not problem.has_open_planes):
                    continue
                rooms = {max(1, n // (threads_x * threads_y)) for n in BLOCK_THREADS}
                for room, shared_filter in product(rooms, (False,) if shared else (False, True)):
                    yield replace(
                        LEAST,
                        planes=max(whole_planes(workload, min(64, room * siblings))),
                        threads_y=threads_y,
                        threads_x=threads_x,
                        thread_y=row,
                        thread_x=columns,
                        store=store,
                        unroll=unroll,
                        shared_input=shared,
                        shared_filter=shared_filter,
                        load=load,
                        siblings=siblings,
                        flat=flat,
                    )


def _of_rows(workload: ConvWorkload) -> Iterator[Config]:
    """Yield configurations for planes of one row: a thread has a few of the widest vectors, far from each other.

    So all its loads are in flight at once, and neighbouring threads read and write whole lines.
    """
    limit, width, m = 16 // workload.itemsize, workload.output_size[1], workload.multiplier
    vector = _vector(limit, width, workload.width)
    for shared, parts, siblings in product((False, True), (8, 4, 2, 1), {1, m}):
        threads_x = evenly(ceil_div(width, vector * parts), max(BLOCK_THREADS))
        waste = wasted(width, threads_x * vector * parts)
        if (
            vector * parts > ROW_OUTPUTS
            or vector * parts * siblings > OUTPUTS
            or waste > (MAX_WASTE if parts > 1 else 2)
        ):
            continue
        yield replace(
            LEAST,
            planes=max(whole_planes(workload, min(64, max(1, max(BLOCK_THREADS) // threads_x) * siblings))),
            threads_x=threads_x,
            vthreads_x=parts,
            thread_x=vector,
            store=vector,
            unroll=2,
            shared_input=shared,
            shared_filter=not shared and prod(workload.kernel) * m > 9,
            load=vector,
            siblings=siblings,
        )


def _vector(limit: int, *extents: int) -> int:
    """Return the longest vector of at most `limit` elements that divides all extents; an extent of 0 sets no limit."""
    return next(n for n in (8, 4, 2, 1) if n <= limit and all(extent % n == 0 for extent in extents))
