"""A model of depthwise convolutions on CUDA: tiles worth a trial, the default, and features for a cost model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from math import prod
from statistics import fmean
from typing import Any

import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.targets.devices import H100, Gpu, gpu_of
from tvmconv.workload import ConvWorkload

from ..open_sizes import samples
from ..space import Space, ceil_div, evenly, named, wasted
from .depthwise_tiles import (
    LEAST,
    MOST_WINDOW,
    Config,
    blocks,
    constraints,
    shared_bytes,
    whole_planes,
    window_elements,
)
from .gemm_model import START, bytes_per_clock
from .machine import BLOCK_BYTES, REGISTERS, WARP
from .tensor_model import mostly_largest

FULL_GPU_THREADS = 65536
"""The threads that the default configuration takes for a full H100: 512 on each of some 130 multiprocessors."""

BLOCK_THREADS = 128
HALF_BLOCK_THREADS, HALF_PLANES_THREADS = 256, 64
"""The most threads of a block of one plane, and of one of several, in half precision with up to four columns a thread.

Such threads also have half as many outputs for 3x3 taps as in float32, and taps in shared memory, as their loads bring
half as much, and none is beyond the end of a row. Records of an H100 and an H200 are like that: 3x3 taps on one image
of 256x96x96 took 3.1 µs on the H100 for 4.4 with the numbers for float32, on 256x64x64 2.1 for 2.4, on 32x512x14x14 5.9
for 6.7 (7.3 with a thread beyond the end), and 5x5 on 256x96x96 4.8 for 7.0, of more outputs each.
"""

NARROW = 8
"""The columns of a plane up to which a thread of the default configuration takes whole rows."""

HALVED_WINDOW = 64
"""The most elements that a thread reads for half of a narrow plane, in half precision.

At batch 32 3x3 taps on 960 planes of 7x7 took 3.5 µs by halves on an H100 and an H200, and 4.3 µs by rows.
"""

THREAD_BYTES = 24
"""The bytes that memory moves in the time that a thread costs for itself.

On an H200 kernels of four outputs a thread took 1.1 to 2.2 times as long as those of sixteen (MobileNetV2, batch 32).
"""

MULTIPLY_ADDS = 51.0
"""The multiply-adds of a multiprocessor in a clock, of 128 at best: on an H200 windows from 5x5 to 31x31 in float16
took 0.8 to 1.05 of the time that this tells.
"""

STAGED = 15.0
"""The multiply-adds in the time that staging an element in shared memory takes, with its tests and the waiting.

It lies between two windows in float16 on an H200: 13x13 on planes of 7x7, which stages 400 elements for 49 outputs and
took 57 µs where multiply-adds alone told 35, and 31x31 on planes of 56x56, of which they told all.
"""

WASTE = 1.15
"""The largest ratio of computed to wanted outputs at the bottom of a plane in the default configuration."""

ANY_WASTE = 1.25
"""The largest mean ratio of computed to wanted outputs on planes of any size, if any of its kind has one so small."""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take depthwise convolutions."""
    return None if problem.is_depthwise else "is for depthwise convolutions"


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that memory takes to move the operands once, with what whole blocks read and write in vain.

    Each thread adds some for itself. Large windows take longer, which multiply-adds bound, and the elements that are
    staged for them.
    """
    workload, gpu = problem.workload, gpu_of(target)
    waste = prod(map(wasted, workload.output_size, (config.block_y, config.block_x)))
    threads = prod(workload.output_shape) / config.outputs
    moved = waste * (workload.bytes_moved + THREAD_BYTES * threads)
    staged = config.shared_input * prod(workload.read_by((config.block_y, config.block_x)))
    staging = STAGED * staged * blocks(workload, config) * config.planes / workload.multiplier
    computed = (waste * workload.flops / 2 + staging) / (MULTIPLY_ADDS * gpu.multiprocessors)
    return START + mostly_largest(moved / bytes_per_clock(gpu), computed)


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "vector loads": replace(config, store=1, load=1),
        "unrolling": replace(config, unroll=0, shared_input=True),
        "shared filter": replace(config, shared_filter=False),
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations worth trying for a workload, legal on the target."""
    workload = problem.workload
    height, width = workload.output_size
    default = default_config(problem, target)
    wide = (4, 8) if height == 1 else ()  # for planes of one row, of which a thread has several vectors

    def upto(limit: int, *values: int) -> set[int]:
        return {value for value in values if value <= limit}

    rows, columns = upto(height, 1, 2, 3, 4, 6, 7, 8), upto(width, 1, 2, 4, 7, 8)
    whole_height = upto(64, *(ceil_div(height, n) for n in rows))
    whole_width = upto(64, *(ceil_div(width, n) for n in columns))
    # What of the input fits into registers belongs there; only what does not is staged.
    staged = default.shared_input
    knobs: dict[str, Iterable[Any]] = {
        "planes": {*whole_planes(workload, 64)},
        "threads_y": upto(2 * height - 1, 1, 2, 4, 8, 16) | whole_height,
        "threads_x": upto(2 * width - 1, 1, 4, 8, 16, 32, 56) | whole_width,
        "vthreads_y": upto(height, 1, 2) if staged else {1},
        "vthreads_x": upto(width, 1, 2, *wide) if staged or wide else {1},
        "thread_y": rows,
        "thread_x": columns,
        "store": upto(16 // workload.itemsize, 1, 2, 4, 8),
        "unroll": {default.unroll},
        "shared_input": {staged, False},
        "shared_filter": {False, True},
        "load": upto(16 // workload.itemsize, 1, 2, 4, 8),
        "siblings": {1, workload.multiplier},
        "flat": {False, True},
    }
    values: dict[str, tuple[Any, ...]] = {
        name: tuple(sorted({*several, getattr(default, name)})) for name, several in knobs.items()
    }
    return Space(default, LEAST, values, constraints(problem, target), heuristics(workload, gpu_of(target)))


def heuristics(workload: ConvWorkload, gpu: Gpu) -> dict[str, Callable[[Config], bool]]:
    """Return tests that select legal configurations worth building, by name.

    Without them a space has some hundred times as many configurations.
    """
    height, width = workload.output_size
    share = prod(workload.output_shape) / full_gpu_threads(gpu)

    def widest_stores(config: Config) -> bool:
        return config.flat or config.thread_x == config.store or width % config.thread_x != 0

    def neighbours_read_together(config: Config) -> bool:
        return config.flat or (
            config.thread_x <= (16 // workload.itemsize if height > 1 else 8) and config.threads_x > 1
        )

    def whole_warps(config: Config) -> bool:
        return config.threads <= 256 and wasted(config.threads, 32) <= 1.35

    def enough_threads(config: Config) -> bool:
        return config.threads >= 32 and blocks(workload, config) >= min(gpu.multiprocessors, 512 * share)

    def little_waste(config: Config) -> bool:
        return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

    def few_registers(config: Config) -> bool:
        return config.outputs <= 32

    def enough_work(config: Config) -> bool:
        return config.outputs >= min(4, share / 2)

    def one_stage(config: Config) -> bool:
        return not (config.shared_input and config.shared_filter)

    def one_way_of_striding(config: Config) -> bool:
        return config.vthreads_y * config.vthreads_x <= (2 if height > 1 else 8)

    return named(
        widest_stores,
        neighbours_read_together,
        whole_warps,
        enough_threads,
        little_waste,
        few_registers,
        enough_work,
        one_stage,
        one_way_of_striding,
    )


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return a legal configuration that is reasonable for any workload.

    Its kind was fast on an H100: a window in registers, read once by loads as wide as stores; one block as wide as the
    plane; all outputs of a channel in one thread. Planes too narrow for that go through shared memory as they lie. So
    does the tile of a window too large for registers, and one too large for both is read through the cache.
    """
    checks = constraints(problem, target).values()
    legal = (config for config in _candidates(problem, gpu_of(target)) if all(holds(config) for holds in checks))
    if (best := next(legal, None)) is None:
        raise NoValidConfigurationError(f"{problem}: no configuration is legal on {target}")
    if not problem.has_open_planes:
        return best
    alike = [
        best,
        *(config for config in legal if (config.unroll, config.shared_input) == (best.unroll, best.shared_input)),
    ]
    wastes = {config: mean_waste(problem, config) for config in alike}
    return next((config for config in alike if wastes[config] <= ANY_WASTE), min(alike, key=wastes.__getitem__))


def mean_waste(problem: Problem, config: Config) -> float:
    """Return the outputs that whole tiles compute, as a multiple of those wanted, in the mean of planes of any size."""
    tile = config.block_y, config.block_x
    return fmean(prod(map(wasted, each.output_size, tile)) for each in samples(problem))


def _candidates(problem: Problem, gpu: Gpu) -> Iterator[Config]:
    """Yield configurations for the default, the best first; not all are legal."""
    workload = problem.workload
    height, width = workload.output_size
    m, share = workload.multiplier, prod(workload.output_shape) // full_gpu_threads(gpu)
    is_half, few_taps = workload.itemsize == 2, prod(workload.kernel) <= 9
    if width <= NARROW:
        half = ceil_div(width, 2)
        if is_half and share >= 16 and prod(workload.read_by((height, half))) <= HALVED_WINDOW:
            for planes in reversed(whole_planes(workload, 32)):
                if planes >= 16:
                    yield replace(
                        LEAST, planes=planes, threads_x=2, thread_y=height, thread_x=half, unroll=2, flat=True
                    )
        for planes in reversed(whole_planes(workload, min(64, ceil_div(2 * BLOCK_THREADS, height)))):
            if planes * height >= 32:
                yield replace(
                    LEAST, planes=planes, threads_y=height, thread_x=width, unroll=2, shared_filter=True, flat=True
                )

    def most(columns: int) -> int:
        """Return the most outputs of a thread, of one channel."""
        if is_half and not eight:
            return max(4, min(16, share // 2)) if few_taps or m > 1 else max(4, min(max(16, 6 * columns), share))
        return max(4, min(max(16, (4 if few_taps or not eight else 6) * columns), share))

    # Of 3x3 taps in half precision 4x8 outputs of a thread take 15 to 17 instructions each in sm_90, and 4x4 some 21.
    eight = is_half and (m == 1 or not few_taps) and share >= 64 and prod(workload.read_by((4, 8))) <= MOST_WINDOW
    one_plane, planes_of = (
        (HALF_BLOCK_THREADS, HALF_PLANES_THREADS) if is_half and not eight else (BLOCK_THREADS, BLOCK_THREADS)
    )
    if height == 1 and not problem.has_open_planes:
        yield from _of_rows(workload, max(4, min(16, share)))
    widest = 8 if eight else 4 if share >= 32 else 2
    ways = ((False, 2, 4), (True, 2, 1), (True, 1, 1), (False, 2, 1), (True, 0, 1), (False, 0, 1))
    for shared, unroll, least in ways:
        for columns in (n for n in (8, 4, 2, 1) if n <= widest and width % n == 0):
            heights = [n for n in range(1, 9) if least <= n * columns <= most(columns) and wasted(height, n) <= WASTE]
            most_threads = (evenly if is_half and not eight else _threads)(ceil_div(width, columns), 64)
            threads = (64, 32, 16, 8) if "width" in problem.open_sizes else (most_threads,)
            for rows, threads_x in product(reversed(heights or [1]), threads):
                steps = ceil_div(height, rows)
                threads_y = evenly(steps, max(1, one_plane // threads_x))
                siblings = m if m <= 4 and m * rows * columns <= 32 else 1
                room = max(1, planes_of // (threads_x * threads_y)) * siblings
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
                            shared_filter=not shared and (prod(workload.kernel) * m > 9 or (is_half and not eight)),
                            load=load,
                            siblings=siblings,
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


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, gpu = problem.workload, gpu_of(target)
    height, width = workload.output_size
    grid, shared = blocks(workload, config), shared_bytes(workload, config)
    taps, vthreads = prod(workload.kernel), config.vthreads_y * config.vthreads_x
    own = prod(workload.read_by((config.thread_y, config.thread_x))) * vthreads
    staged = prod(workload.read_by((config.block_y, config.block_x)))
    registers = 24 + config.outputs + window_elements(workload, config)
    warps = ceil_div(config.threads, 32)
    by_registers = REGISTERS // WARP // (warps * ceil_div(registers, 8) * 8)
    by_shared = gpu.shared_bytes // (shared + BLOCK_BYTES)
    resident = max(1, min(gpu.blocks, gpu.warps // warps, by_shared, by_registers))
    waves = grid / (gpu.multiprocessors * resident)
    run = min(width, config.threads_x * config.thread_x)
    return {
        "threads": config.threads,
        "idle_lanes": warps * 32 / config.threads,
        "blocks": grid,
        "outputs": config.outputs,
        "vthreads": vthreads,
        "block_x": config.block_x,
        "block_y": config.block_y,
        "waste_x": wasted(width, config.block_x),
        "waste_y": wasted(height, config.block_y),
        "waste": wasted(width, config.block_x) * wasted(height, config.block_y),
        "shared_bytes": shared,
        "registers": registers,
        "warps_per_sm": min(warps * resident, grid * warps / gpu.multiprocessors),
        "waves": waves,
        "last_wave": ceil_div(grid, gpu.multiprocessors * resident) / waves,
        "blocks_per_sm": ceil_div(grid, gpu.multiprocessors) * gpu.multiprocessors / grid,
        "macs_per_load": config.outputs * taps / own,
        "halo": staged / (config.block_y * config.block_x),
        "outputs_per_sm": config.outputs * config.threads * min(resident, grid / gpu.multiprocessors),
        "run_bytes": run * workload.itemsize,
        "rows_of_warp": max(1.0, 32 / config.threads_x),
        "taps": taps,
        "plane": height * width,
        "planes": workload.batch * workload.out_channels,
    }
