"""The default configuration of depthwise convolutions on CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import tvm

from tvmconv.problem import Problem
from tvmconv.targets.devices import gpu_of
from tvmconv.workload import ConvWorkload

from ..space import ceil_div, evenly, wasted
from .depthwise_clocks import clocks
from .depthwise_rules import usual_config
from .depthwise_tiles import LEAST, Config, constraints, whole_planes

MARGIN = 1.2
"""How many times as long as the best candidate the usual configuration has to take, by the model, to be replaced.

On layers of MobileNet and ConvNeXt on an H100 the model tells a gain of up to 1.18 where there is none. With this
margin the defaults of 92 random workloads took 1.14 times as long there as the best that was measured; the usual ones
1.39 times.
"""

BLOCK_THREADS = (64, 128)
"""The most threads that a block has, as configurations have that were fast on an H100."""

MOST_THREADS = 256
"""The most threads of a block for a whole plane, likewise."""

OUTPUTS = 32
"""The most outputs of a thread, likewise."""

WASTE = 1.3
"""The largest ratio of computed to wanted outputs."""


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return a legal configuration that is reasonable for any workload.

    It is that of `usual_config`, which is made for common layers. Where planes are known, and no sequences of one row,
    another one takes its place that `clocks` tells to be faster by a `MARGIN`.
    """
    usual, workload = usual_config(problem, target), problem.workload
    if problem.has_open_planes or workload.height == 1:
        return usual
    gpu, checks = gpu_of(target), constraints(problem, target).values()

    def time(config: Config) -> float:
        return clocks(workload, config, gpu)

    legal = (config for config in _candidates(workload) if all(holds(config) for holds in checks))
    best = min(legal, key=time, default=usual)
    return best if MARGIN * time(best) < time(usual) else usual


def _candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Yield configurations of one tile for each block; not all are legal."""
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
            for threads_y in {down} if flat else {evenly(down, max(1, n // threads_x)) for n in BLOCK_THREADS}:
                waste = wasted(height, row * threads_y) * wasted(width, columns * threads_x)
                if threads_y * threads_x > MOST_THREADS or waste > WASTE:
                    continue
                for room in {max(1, n // (threads_x * threads_y)) for n in BLOCK_THREADS}:
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
