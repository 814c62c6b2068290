"""A model of depthwise convolutions in NHWC on CUDA: the default configuration, and those worth a trial."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import hypot, prod
from statistics import fmean
from typing import Any

import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu, gpu_of

from ...open_sizes import samples
from ...space import Space, ceil_div, divisors, evenly, named, wasted
from ..machine import BLOCK_BYTES, REGISTERS, SECTOR, WARP
from ..simt.model import START, bytes_per_clock
from .tiles import LEAST, Config, blocks, constraints, products, read, registers, shared_bytes, vectors, whole

LOAD, EDGE, STORE, TAP, FINISH, THREAD = 1.2, 10.0, 1.2, 5.5, 1.0, 50.0
"""The issue slots of a load of a vector of the input; of the address and the tests of one that may lie beyond an edge;
of a store; of staging a tap; of an output's epilogue; and of a thread for itself. They were counted in machine code for
sm_90, but for the second, which was fitted with what follows to some 200 configurations of 24 layers on an H200. Clocks
are as many too many as those of `depthwise_model`: both count on the memory of an H100."""

ISSUED, ACCESS = 3.4, 2.8
"""The instructions of warps that a multiprocessor issues in a clock, and the clocks of a warp's access to 128 bytes."""

CODE, LONG_CODE = 4096, 1.6
"""The instructions that caches of code hold, and how many times as long those beyond take."""

WAIT, ROW_WAIT = 290.0, 150.0
"""The clocks that a thread waits for memory, for its taps and for its input, and for each further row of that."""

CACHED, RUN = 0.5, 20
"""The time that moving bytes takes which stay in the L2 cache, as a share of that for memory; and the bytes that each
run of neighbouring ones costs in addition."""

FETCHED = 5.0
"""The bytes that a multiprocessor fetches in a clock of those that lie in the windows of several blocks, but for the
first time. It was fitted to 130 configurations of seven layers on an H200: a 7x7 layer took 80 µs by blocks that read
four times what is theirs, and 35 by blocks of whole planes."""

SCHEDULERS = 4
"""The warps of which a multiprocessor can issue instructions at once."""

FEW_REGISTERS = 30
"""The registers of a thread's addresses and tests."""

BLOCK_THREADS = (64, 128, 256)
"""The threads of a block of the default configuration, at most."""

ROWS, COLUMNS = (1, 2, 3, 4, 5, 6, 7, 8, 14), (1, 2, 3, 4, 5, 7, 8)
"""The rows and columns of a thread."""

DOUBLING = 8000
"""The unrolled multiply-adds of a thread that a default may have for half the time: NVRTC takes a second for 1000."""

WORTH_A_TRIAL, MOST_WASTE = 1.3, 1.25
"""The largest ratios in the space of a configuration's time to the default's, by the model, and of outputs that whole
tiles compute to those wanted, unless the default's is larger."""


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take depthwise convolutions with one output for each channel, and a window that can be unrolled."""
    workload = problem.workload
    if not problem.is_depthwise:
        return "is for depthwise convolutions"
    if workload.multiplier > 1:
        return f"takes one output for each channel, not {workload.multiplier}"
    if problem.has_open_planes and workload.epilogue.residual:  # a tile would read it beyond its end
        return "takes no residual where a height or a width is left open"
    checks = constraints(problem, target).values()
    least = [replace(LEAST, threads_c=threads) for threads in _threads_c(workload, 1)]
    if not any(all(holds(config) for holds in checks) for config in least):
        rows, columns = workload.window
        return f"takes windows that it can unroll in registers, not of {rows}x{columns}"
    return None


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks of the busiest multiprocessor, in the mean of planes of any size where they are open."""
    gpu, is_open = gpu_of(target), problem.has_open_planes
    return fmean(clocks(workload, config, gpu, is_open) for workload in samples(problem))


def clocks(workload: ConvWorkload, config: Config, gpu: Gpu, is_open: bool) -> float:
    """Return the clocks of the busiest multiprocessor, wave by wave of blocks.

    In each it issues instructions, accesses its caches, moves its share of what memory moves, fetches again what other
    blocks read too, and waits.
    """
    grid, warps = blocks(workload, config), ceil_div(config.threads, WARP)
    share = ceil_div(grid, gpu.multiprocessors)
    together = min(share, resident_blocks(workload, config, gpu))
    run = config.channels * workload.itemsize
    surplus = wasted(run, SECTOR) * (1 + RUN / run) * (CACHED if workload.bytes_moved <= gpu.l2_room else 1)
    moved = surplus * workload.bytes_moved / grid / (bytes_per_clock(gpu) / gpu.multiprocessors)
    issued = warps * slots(workload, config, is_open) / ISSUED
    accesses = prod(read(workload, config)) + config.thread_y * config.thread_x
    accessed = warps * accesses * max(1, config.vector * workload.itemsize / 4) * ACCESS
    busy = hypot(issued, accessed, moved, max(run, SECTOR) * read_again(workload, config) / FETCHED)
    rows = 0 if config.ahead else read(workload, config)[0]
    alone = WAIT + ROW_WAIT * rows + issued * max(1, SCHEDULERS / warps)
    waves = ceil_div(share, together)
    last = share - (waves - 1) * together
    return START + (waves - 1) * hypot(together * busy, alone) + hypot(last * busy, alone)


def read_again(workload: ConvWorkload, config: Config) -> int:
    """Return the pixels that a block reads beyond those under its own outputs."""
    block, size = (config.block_y, config.block_x), (workload.height, workload.width)
    window = prod(map(min, workload.read_by(block), size))
    own = prod(min(count * stride, most) for count, stride, most in zip(block, workload.stride, size, strict=True))
    return max(0, window - own)


def slots(workload: ConvWorkload, config: Config, is_open: bool) -> float:
    """Return the instructions of a thread, with those counted several times that caches of code do not hold."""
    taps, loads = prod(workload.kernel), prod(read(workload, config))
    converted = config.vector * (workload.dtype != workload.storage.sums)
    loaded = loads * (LOAD + converted) + edges(workload, config, is_open) * (EDGE + config.vector)
    staged = taps * config.vector / (config.threads_y * config.threads_x)
    stored = config.thread_y * config.thread_x * STORE
    found = THREAD + products(workload, config) + FINISH * config.outputs + loaded + taps + TAP * staged + stored
    return found + LONG_CODE * max(0.0, found - CODE)


def edges(workload: ConvWorkload, config: Config, is_open: bool) -> int:
    """Return the vectors of a thread's input that may lie beyond an edge; all may where no tile ends at it."""
    top, left, bottom, right = workload.padding
    tiles = zip(workload.output_size, (config.block_y, config.block_x), strict=True)
    sizes = zip(read(workload, config), tiles, (top + bottom, left + right), whole(workload, config), strict=True)
    inside = [
        size if is_whole else 0 if is_open or output % block else max(0, size - pads)
        for size, (output, block), pads, is_whole in sizes
    ]
    return prod(read(workload, config)) - prod(inside)


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the number of blocks that a multiprocessor has room for at once."""
    warps = ceil_div(config.threads, WARP)
    by_registers = REGISTERS // WARP // (warps * ceil_div(FEW_REGISTERS + registers(workload, config), 8) * 8)
    by_shared = gpu.shared_bytes // (shared_bytes(workload, config) + BLOCK_BYTES)
    return max(1, min(gpu.blocks, gpu.warps // warps, by_shared, by_registers))


@lru_cache(maxsize=64)  # the model tries thousands
def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of some that are reasonable for any workload, with the least estimate.

    Where estimates are close it is the one that compiles faster.
    """
    checks = constraints(problem, target).values()
    candidates = dict.fromkeys(_candidates(problem.workload))  # some come several times
    legal = (config for config in candidates if all(holds(config) for holds in checks))

    def cost(config: Config) -> float:
        return estimate(problem, config, target) * (1 + products(problem.workload, config) / DOUBLING)

    best = min(legal, key=cost, default=None)
    if best is None:
        raise NoValidConfigurationError(f"{problem}: no configuration is legal on {target}")
    return best


def _candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Yield configurations for the default; not all are legal."""
    height, width = workload.output_size
    for vector, rows, columns in product(vectors(workload), ROWS, COLUMNS):
        if rows > height or columns > width:
            continue
        tiles_y, tiles_x = ceil_div(height, rows), ceil_div(width, columns)
        for threads_c in _threads_c(workload, vector):
            for threads in BLOCK_THREADS:
                most = max(1, threads // threads_c)
                threads_x = evenly(tiles_x, most)
                threads_y = evenly(tiles_y, max(1, most // threads_x))
                for ahead in (False, True):
                    yield Config(vector, threads_c, threads_y, threads_x, rows, columns, ahead)


def _threads_c(workload: ConvWorkload, vector: int) -> tuple[int, ...]:
    """Return numbers of threads along the channels: those of whole warps, and the largest others."""
    known = divisors(workload.out_channels // vector, 256)
    enough = [each for each in known if each * vector >= least_channels(workload)] or known[-1:]
    return tuple(sorted({*(each for each in enough if each in (8, 16, 32, 64)), *enough[:1], *enough[-2:]}))


def least_channels(workload: ConvWorkload) -> int:
    """Return the number of neighbouring channels that fill a sector, or all if they do not."""
    return min(SECTOR // workload.itemsize, workload.out_channels)


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, gpu = problem.workload, gpu_of(target)
    height, width = workload.output_size
    rows, columns = read(workload, config)
    grid, resident = blocks(workload, config), resident_blocks(workload, config, gpu)
    warps, share = ceil_div(config.threads, WARP), ceil_div(grid, gpu.multiprocessors)
    return {
        "clocks": estimate(problem, config, target),
        "slots": slots(workload, config, problem.has_open_planes),
        "registers": registers(workload, config),
        "threads": config.threads,
        "idle_lanes": warps * WARP / config.threads,
        "blocks": grid,
        "resident": resident,
        "warps_per_sm": min(share, resident) * warps,
        "balance": share * gpu.multiprocessors / grid,
        "outputs": config.outputs,
        "block_y": config.block_y,
        "block_x": config.block_x,
        "waste_y": wasted(height, config.block_y),
        "waste_x": wasted(width, config.block_x),
        "halo": rows * columns / (config.thread_y * config.thread_x * prod(workload.stride)),
        "block_halo": prod(workload.read_by((config.block_y, config.block_x))) / (config.block_y * config.block_x),
        "run_bytes": config.channels * workload.itemsize,
        "shared_bytes": shared_bytes(workload, config),
        "taps": prod(workload.kernel),
        "plane": height * width,
        "channels": workload.out_channels,
        "images": workload.batch,
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations worth trying: the model does not find them much slower than the default."""
    workload = problem.workload
    height, width = workload.output_size
    default = default_config(problem, target)
    bound = START + WORTH_A_TRIAL * (estimate(problem, default, target) - START)

    def whole_sectors(config: Config) -> bool:
        """Return whether neighbouring threads read a sector together, if there are so many channels."""
        return workload.out_channels % config.channels == 0 and config.channels >= least_channels(workload)

    def full_warps(config: Config) -> bool:
        return WARP <= config.threads <= 512 and wasted(config.threads, WARP) <= 1.35

    def waste(config: Config) -> float:
        return wasted(height, config.block_y) * wasted(width, config.block_x)

    def little_waste(config: Config) -> bool:
        return waste(config) <= max(MOST_WASTE, waste(default))

    def promising(config: Config) -> bool:
        return estimate(problem, config, target) <= bound

    def upto(limit: int, *values: int) -> set[int]:
        return {value for value in values if value <= limit}

    knobs: dict[str, Iterable[Any]] = {
        "vector": set(vectors(workload)),
        "threads_c": {*divisors(workload.out_channels, 256)},
        "threads_y": upto(height, 1, 2, 4, 7, 8, 14),
        "threads_x": upto(width, 1, 2, 4, 7, 8, 14),
        "thread_y": upto(height, *ROWS),
        "thread_x": upto(width, *COLUMNS),
        "ahead": {False, True},
    }
    values: dict[str, tuple[Any, ...]] = {
        name: tuple(sorted({*several, getattr(default, name)})) for name, several in knobs.items()
    }
    heuristics = named(whole_sectors, full_warps, little_waste)
    return Space(default, LEAST, values, constraints(problem, target), heuristics, promising)


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "vector loads": replace(config, vector=1),
        "tile in registers": replace(config, thread_y=1, thread_x=1),
        "input ahead": replace(config, ahead=False),
    }
