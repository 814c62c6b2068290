"""The default of depthwise convolutions on CUDA: the usual one, by rules for common layers, or a candidate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from statistics import fmean
from typing import NamedTuple

from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import H100, Gpu

from ...open_sizes import samples
from ...space import ceil_div, evenly, wasted
from .tiles import LEAST, MOST_WINDOW, Config, whole_planes

FULL_GPU_THREADS = 65536
"""The threads that the usual configuration takes for a full H100: 512 on each of some 130 multiprocessors."""

BLOCK_THREADS = 128
"""The most threads of a block, as configurations have that were fast on an H100."""

HALF_BLOCK_THREADS, HALF_PLANES_THREADS = 256, 64
"""The most threads of a block of one plane, and of one of several, in half precision with up to four columns a thread.

Such threads also have half as many outputs for 3x3 taps as in float32, and taps in shared memory, as their loads bring
half as much, and none is beyond the end of a row. Records of an H100 and an H200 are like that: 3x3 taps on one image
of 256x96x96 took 3.1 µs on the H100 for 4.4 with the numbers for float32, on 256x64x64 2.1 for 2.4, on 32x512x14x14 5.9
for 6.7 (7.3 with a thread beyond the end), and 5x5 on 256x96x96 4.8 for 7.0, of more outputs each.
"""

NARROW = 8
"""The columns of a plane up to which a thread of the usual configuration takes whole rows."""

HALVED_WINDOW = 64
"""The most elements that a thread reads for half of a narrow plane, in half precision.

At batch 32 3x3 taps on 960 planes of 7x7 took 3.5 µs by halves on an H100 and an H200, and 4.3 µs by rows.
"""

WASTE = 1.15
"""The largest ratio of computed to wanted outputs at the bottom of a plane in the usual configuration."""

ANY_WASTE = 1.25
"""The largest mean ratio of computed to wanted outputs on planes of any size, if any of its kind has one so small."""

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


def mean_waste(problem: Problem, config: Config) -> float:
    """Return the outputs that whole tiles compute, as a multiple of those wanted, in the mean of planes of any size."""
    tile = config.block_y, config.block_x
    return fmean(prod(map(wasted, each.output_size, tile)) for each in samples(problem))


def usual_configs(problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Yield configurations, the best first; not all are legal."""
    workload = problem.workload
    height, width = workload.output_size
    m, share = workload.multiplier, prod(workload.output_shape) // full_gpu_threads(gpu)
    if width <= NARROW:
        yield from _of_narrow_planes(workload, share)
    if height == 1 and not problem.has_open_planes:
        yield from _of_rows(workload, max(4, min(16, share)))
    limits = _limits(workload, share)
    ways = ((False, 2, 4), (True, 2, 1), (True, 1, 1), (False, 2, 1), (True, 0, 1), (False, 0, 1))
    for shared, unroll, least in ways:
        for columns in (n for n in (8, 4, 2, 1) if n <= limits.columns and width % n == 0):
            most = max(4, min(max(16, limits.rows * columns), limits.share))
            heights = [n for n in range(1, 9) if least <= n * columns <= most and wasted(height, n) <= WASTE]
            row_threads = (_threads if limits.rounds else evenly)(ceil_div(width, columns), 64)
            threads = (64, 32, 16, 8) if "width" in problem.open_sizes else (row_threads,)
            for rows, threads_x in product(reversed(heights or [1]), threads):
                threads_y = evenly(ceil_div(height, rows), max(1, limits.block_threads // threads_x))
                siblings = m if m <= 4 and m * rows * columns <= 32 else 1
                room = max(1, limits.planes_threads // (threads_x * threads_y)) * siblings
                for planes in reversed(whole_planes(workload, min(room, 64))):
                    for load in (columns, 1):
                        yield replace(
                            LEAST,
                            planes=planes,
                            threads_y=threads_y,
                            threads_x=threads_x,
                            thread_y=rows,
                            thread_x=columns,
                            store=columns,
                            unroll=unroll,
                            shared_input=shared,
                            shared_filter=not shared and limits.stages_taps,
                            load=load,
                            siblings=siblings,
                        )


class Limits(NamedTuple):
    """The most that a usual configuration has of threads and of outputs, for a workload, and what goes with it."""

    columns: int
    """The columns of a thread."""
    rows: int
    """The rows of a thread, if it then has more than 16 outputs."""
    share: int
    """The outputs of a thread where the GPU is not full otherwise."""
    block_threads: int
    """The threads of a block of one plane."""
    planes_threads: int
    """The threads of a block of several planes."""
    rounds: bool
    """True if a few threads may be beyond the end of a row."""
    stages_taps: bool
    """True if taps are staged in shared memory."""


def _limits(workload: ConvWorkload, share: int) -> Limits:
    """Return the limits for a workload, of whose outputs each thread of a full GPU has such a share."""
    taps, m, is_half = prod(workload.kernel), workload.multiplier, workload.itemsize == 2
    # Of 3x3 taps in half precision 4x8 outputs of a thread take 15 to 17 instructions each in sm_90, and 4x4 some 21.
    if is_half and share >= 64 and (m == 1 or taps > 9) and prod(workload.read_by((4, 8))) <= MOST_WINDOW:
        return Limits(8, 4 if taps <= 9 else 6, share, BLOCK_THREADS, BLOCK_THREADS, True, taps * m > 9)
    columns = 4 if share >= 32 else 2
    if not is_half:
        return Limits(columns, 4, share, BLOCK_THREADS, BLOCK_THREADS, True, taps * m > 9)
    rows, share = (6, share) if taps > 9 and m == 1 else (4, share // 2)
    return Limits(columns, rows, share, HALF_BLOCK_THREADS, HALF_PLANES_THREADS, False, True)


def _of_narrow_planes(workload: ConvWorkload, share: int) -> Iterator[Config]:
    """Yield configurations for planes of a few columns, which go through shared memory as they lie."""
    height, width = workload.output_size
    half = ceil_div(width, 2)
    if workload.itemsize == 2 and share >= 16 and prod(workload.read_by((height, half))) <= HALVED_WINDOW:
        for planes in reversed(whole_planes(workload, 32)):
            if planes >= 16:
                yield replace(LEAST, planes=planes, threads_x=2, thread_y=height, thread_x=half, unroll=2, flat=True)
    for planes in reversed(whole_planes(workload, min(64, ceil_div(2 * BLOCK_THREADS, height)))):
        if planes * height >= 32:
            yield replace(
                LEAST, planes=planes, threads_y=height, thread_x=width, unroll=2, shared_filter=True, flat=True
            )


def _of_rows(workload: ConvWorkload, most: int) -> Iterator[Config]:
    """Yield configurations for planes of one row: a thread has a few of the widest vectors, far from each other.

    So all its loads are on their way at once, and neighbouring threads read and write whole lines.
    """
    width, m = workload.output_size[1], workload.multiplier
    vectors = (n for n in (8, 4, 2, 1) if n * workload.itemsize <= 16 and width % n == workload.width % n == 0)
    for vector, shared, parts in product(vectors, (False, True), (8, 4, 2, 1)):
        threads_x = evenly(ceil_div(width, vector * parts), BLOCK_THREADS)
        siblings = m if m <= 4 and m * vector * parts <= 32 else 1
        if vector * parts > max(most, vector) or wasted(width, threads_x * vector * parts) > (
            WASTE if parts > 1 else 2
        ):
            continue
        for planes in reversed(whole_planes(workload, min(64, max(1, BLOCK_THREADS // threads_x) * siblings))):
            yield replace(
                LEAST,
                planes=planes,
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


def full_gpu_threads(gpu: Gpu) -> int:
    """Return the `FULL_GPU_THREADS` of another GPU, in proportion to its multiprocessors."""
    return FULL_GPU_THREADS * gpu.multiprocessors // H100.multiprocessors


def _threads(columns: int, most: int) -> int:
    """Return the threads for the columns of a row: all if there are few, a power of two if that wastes little."""
    threads = evenly(columns, most)
    rounded = 1 << (threads - 1).bit_length()
    return rounded if rounded <= 1.2 * threads else threads


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
