"""A model of how long sparse convolutions take on an H100: the default configuration, and what is worth a trial.

Its ten numbers were fitted to some 220 configurations of 10 operators that were measured there with 90% zeros, at
batch 64 and 1. It is 12% off in the mean; the configuration that it finds the fastest of those measured takes 1.04
times as long as the fastest in the mean, and 1.12 times at most. With any operator left out of the fit, 1.04 and 1.12
times.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import hypot, prod

import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, ceil_to, divisors, named, tile_sizes, wasted
from . import direct
from .machine import BLOCK_BYTES, MULTIPROCESSORS, REGISTERS, SHARED_BYTES, WARP, WARPS
from .sparse_tiles import LEAST, Config, blocks, constraints, copies, elements, places, registers, shared_bytes, window

MOST_INSTRUCTIONS = 16384
"""Of a block of output channels: compilers take longer over twice as many than over two such blocks."""

MOST_CODE = 48000
"""Instructions of all blocks, or two for each product: more take longer to compile than a configuration is worth."""

INSTRUCTION_BYTES = 16

START, BARRIER, LATENCY = 2100, 50, 210
"""Clocks: of a launch; of the barrier of a chunk; until what is staged has come from memory."""

COLD, FAR_COLD = 0.86, 4.1
"""Clocks of an instruction that a multiprocessor has not run yet, and how many times more where it comes from far."""

MISSED, FETCHED = 6.9, 0.9
"""Clocks of an instruction that a multiprocessor has run, but not kept: those that a block waits, and those in which
no other block gets one."""

NEAR_CODE, FAR_CODE = 110 * 1024, 256 * 1024
"""Bytes of code of which half is still there when it is wanted again: in a multiprocessor, and in what is around it."""

MEMORY_BYTES, L2_BYTES = 14.1, 18.4
"""That memory and the L2 cache move, a clock and multiprocessor."""

L2_ROOM = 40e6
"""Bytes that stay in the L2 cache until the next kernel; of an input that is read again, 25e6 beside the output."""

ROW_ENDS, SECTOR = 17, 32
"""Bytes moved in vain at the ends of a row; and where it ends within one of the pieces that memory is moved in."""

CACHED_SHARED_BYTES = 196 * 1024
"""Of shared memory: where blocks have more together, almost nothing of a multiprocessor is left for its L1 cache."""

FLATTERED = 1.2
"""How many times better than measured sparse kernels come out beside dense ones, in the mean of 18 operators."""

LARGE_CODE, FROM_MEMORY = 64 * 1024, 16
"""Bytes of a kernel from which on, and clocks of an instruction, where code comes from memory in each call."""


def clocks(workload: ConvWorkload, config: Config, density: float, evicted: bool = False) -> float:
    """What the busiest multiprocessor takes, or the memory.

    `evicted` says that the L2 cache has lost the code since the last call, as it does in a large network.
    """
    body, warps = instructions(workload, config, density), ceil_div(config.threads, WARP)
    grid, bodies = blocks(workload, config), ceil_div(workload.out_channels, config.channels)
    share = ceil_div(grid * bodies, MULTIPROCESSORS)
    together = min(share, resident_blocks(workload, config))
    running = min(bodies, max(1.0, together * MULTIPROCESSORS / grid))  # of the bodies, at a time
    chunks = workload.in_channels // config.chunk

    code = INSTRUCTION_BYTES * body
    missed = body * _missed(code, NEAR_CODE)
    busy = warps * body / 4 + FETCHED * missed
    behind = max(0.0, LATENCY - (config.buffers - 1) * busy / chunks)
    waiting = chunks * BARRIER + LATENCY + (chunks - 1) * behind
    computing = share / together * hypot(together * busy, busy + MISSED * missed + waiting)
    starting = COLD * body * min(bodies, share) * (1 + FAR_COLD * _missed(running * code, FAR_CODE))
    busiest = config.tiles * computing + starting
    if evicted and bodies * code > LARGE_CODE:
        busiest = hypot(config.tiles * computing, FROM_MEMORY * body * min(bodies, share))
    return START + _overlapped(busiest, *_moving(workload, config, together))


def _missed(size: float, room: float) -> float:
    """The share that is not there when it is wanted again, in the same order, of what so many others came between."""
    return 1 / (1 + (room / size) ** 4)


def _overlapped(*times: float) -> float:
    """What things take together that go on side by side: little more than the longest."""
    return float(sum(time**3 for time in times) ** (1 / 3))


def _moving(workload: ConvWorkload, config: Config, together: int) -> tuple[float, float]:
    """Clocks that memory and the L2 cache take, where a multiprocessor has so many blocks."""
    size, bodies = workload.itemsize, ceil_div(workload.out_channels, config.channels)
    read, written = size * prod(workload.x_shape), size * prod(workload.output_shape)
    rows, columns = window(workload, config)
    tiles = bodies * blocks(workload, config) * config.tiles
    windows = tiles * workload.in_channels * config.images * rows * (columns * size + ROW_ENDS)
    if together * (shared_bytes(workload, config) + BLOCK_BYTES) > CACHED_SHARED_BYTES:
        windows = windows * 3 // 2
    row = config.tile[1] * size
    cut = row % SECTOR > 0 and config.tile[1] < workload.output_size[1]
    written *= 1 + workload.epilogue.residual  # which is read where the output is written
    stored = written * (1 + (ROW_ENDS + SECTOR * cut) / row)
    again = (bodies - 1) * max(0.0, 1 - 25e6 / read)
    beyond = max(0.0, 1 - L2_ROOM / (read + written))
    memory = beyond * (read * (1 + again) + stored)
    return memory / MEMORY_BYTES / MULTIPROCESSORS, (windows + stored) / L2_BYTES / MULTIPROCESSORS


def resident_blocks(workload: ConvWorkload, config: Config) -> int:
    """Blocks that a multiprocessor has room for at once."""
    warps = ceil_div(config.threads, WARP)
    taken = ceil_to(registers(workload, config), 8) * warps * WARP
    shared = shared_bytes(workload, config) + BLOCK_BYTES
    return max(1, min(REGISTERS // taken, SHARED_BYTES // shared, WARPS // warps))


def instructions(workload: ConvWorkload, config: Config, density: float) -> float:
    """Instructions of a thread, which has no loops: as many are the code of a block of output channels."""
    products = density * config.outputs * (workload.in_channels // workload.groups) * prod(workload.kernel)
    staging = (3 if copies(workload) else 6) * workload.in_channels * places(workload, config)
    end = workload.epilogue
    epilogue = 2 * end.residual + end.shift + end.operations
    return products + loads(workload, config, density) + staging + (2 + epilogue) * config.outputs


def loads(workload: ConvWorkload, config: Config, density: float) -> float:
    """Elements that a thread reads from shared memory: those that one of its products needs."""
    return workload.in_channels * elements(workload, config) * (1 - (1 - density) ** config.channels)


def supports(problem: Problem, target: tvm.target.Target) -> bool:
    """Support weights that are compiled in, in NCHW."""
    return problem.sparsity is not None and problem.workload.is_in_nchw


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the busiest multiprocessor should take, or the memory."""
    return clocks(problem.workload, config, problem.density)


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "prefetch": replace(config, buffers=1),
        "shared inputs": replace(config, channels=1),
        "rows": replace(config, rows=1, threads_y=config.threads_y * config.rows),
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """The configurations worth trying for a workload and a share of non-zeros, legal on the target."""
    workload, density = problem.workload, problem.density
    height, width = workload.output_size

    def few_tiles(extent: int, least: int, most: int) -> tuple[int, ...]:
        return tuple(size for size in tile_sizes(extent) if least <= size <= most and wasted(extent, size) <= 1.15)

    knobs = {
        "channels": tuple(
            sorted({ceil_div(workload.out_channels, parts) for parts in (1, 2, 3, 4, 5, 8, 10, 16, 32, 64)})
        ),
        "images": divisors(workload.batch, 8) if height * width <= 256 else (1,),
        "threads_y": few_tiles(height, 1, 32),
        "threads_x": few_tiles(width, min(width, 8), 256) + ((WARP,) if height * width < WARP else ()),
        "rows": (1, 2, 4),
        "columns": (1,),
        "chunk": divisors(workload.in_channels, 32),
        "buffers": (1, 2, 3, 4),
        "tiles": (1,),
    }
    legal = constraints(workload, target)

    def whole_warps(config: Config) -> bool:
        return WARP <= config.threads <= 1024 and wasted(config.threads, WARP) <= 1.15

    def little_waste(config: Config) -> bool:
        return prod(map(wasted, workload.output_size, config.tile)) <= 1.15

    def little_code(config: Config) -> bool:
        body = instructions(workload, config, density)
        products = density * prod(workload.w_shape)
        most = max(MOST_CODE, 2 * products)
        return body <= MOST_INSTRUCTIONS and ceil_div(workload.out_channels, config.channels) * body <= most

    heuristics = named(whole_warps, little_waste, little_code)
    for checks in ((*heuristics.values(), *legal.values()), tuple(legal.values())):
        every = (Config(*values) for values in product(*knobs.values()))
        found = [config for config in every if all(holds(config) for holds in checks)]
        if found:
            default = min(found, key=lambda config: clocks(workload, config, density))
            return Space(default, LEAST, knobs, legal, heuristics)
    raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """The configuration that should be the fastest for a share of non-zeros."""
    return space(problem, target).default


def pays(problem: Problem, config: Config, target: tvm.target.Target, weight_bytes: int) -> bool:
    """Whether the kernel should be faster than the dense one, by the models of both.

    In a network whose weights are more than the L2 cache has room for, code has left it before the kernel runs again;
    dense weights have too, but are read ahead. Depthwise kernels have no such model: a sparse one is taken to pay.
    """
    workload = problem.workload
    if workload.is_depthwise:
        return True
    time = FLATTERED * clocks(workload, config, problem.density, evicted=weight_bytes > L2_ROOM)
    dense = Problem(workload)
    return time < direct.estimate(dense, direct.default_config(dense, target), target)


def features(problem: Problem, config: Config) -> dict[str, float]:
    """What a cost model should know beside the knobs, such that workloads can be compared; an H100 is assumed."""
    workload, density = problem.workload, problem.density
    grid, bodies = blocks(workload, config), ceil_div(workload.out_channels, config.channels)
    share, resident = ceil_div(grid * bodies, MULTIPROCESSORS), resident_blocks(workload, config)
    return {
        "clocks": clocks(workload, config, density),
        "instructions": instructions(workload, config, density),
        "loads": loads(workload, config, density),
        "places": places(workload, config),
        "bodies": bodies,
        "blocks": grid,
        "outputs": config.outputs,
        "threads": config.threads,
        "chunks": workload.in_channels // config.chunk,
        "warps": min(share, resident) * ceil_div(config.threads, WARP),
        "resident": resident,
        "balance": share * MULTIPROCESSORS / (grid * bodies),
        "shared_bytes": shared_bytes(workload, config),
        "row_bytes": config.tile[1] * workload.itemsize,
        "halo": prod(window(workload, config)) / prod(config.tile),
        "waste": prod(map(wasted, workload.output_size, config.tile)),
    }
