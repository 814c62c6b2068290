"""A model of the time of sparse convolutions on an H100: the default configuration, and those worth a trial.

Its ten numbers were fitted to some 220 configurations of 10 operators that were measured there with 90% zeros, at
batch 64 and 1. It is 12% off in the mean; the configuration that it finds the fastest of those measured takes 1.04
times as long as the fastest in the mean, and 1.12 times at most. With any operator left out of the fit, 1.04 and 1.12
times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import hypot, prod

import tvm

from tvmconv.errors import NoValidConfigurationError
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, ceil_div, ceil_to, divisors, named, tile_sizes, wasted
from ..machine import BLOCK_BYTES, REGISTERS, WARP
from .tiles import LEAST, Config, blocks, constraints, copies, elements, places, registers, shared_bytes, window

MOST_INSTRUCTIONS = 16384
"""The largest number of instructions of a block of output channels.

Compilers take longer over twice as many than over two such blocks.
"""

MOST_CODE = 48000
"""The largest number of instructions of all blocks, or two for each product.

More take longer to compile than a configuration is worth.
"""

INSTRUCTION_BYTES = 16

START, BARRIER, LATENCY = 2100, 50, 210
"""The clocks of a launch, of the barrier of a chunk, and until staged data has come from memory."""

COLD, FAR_COLD = 0.86, 4.1
"""The clocks of an instruction that a multiprocessor has not run yet, and the factor where it comes from far."""

MISSED, FETCHED = 6.9, 0.9
"""The clocks of an instruction that a multiprocessor has run but not kept: a block's wait, and the fetch.

During the fetch no other block gets an instruction.
"""

NEAR_CODE, FAR_CODE = 110 * 1024, 256 * 1024
"""The bytes of code of which half is still in a multiprocessor, or in the caches around it, when run again."""

L2_BYTES = 18.4
"""The bytes that the L2 cache moves in a clock for a multiprocessor."""

READ_AGAIN = 5 / 8
"""The share of the L2 cache that an input which is read again has beside the output."""

ROW_ENDS, SECTOR = 17, 32
"""The bytes moved in vain at the ends of a row; and the bytes of a piece that memory is moved in."""

FLATTERED = 1.2
"""The factor by which sparse kernels come out better than measured beside dense ones, on average over 18 operators."""

LARGE_CODE, FROM_MEMORY = 64 * 1024, 16
"""The bytes of a kernel from which code comes from memory in each call, and then the clocks of an instruction."""


def clocks(workload: ConvWorkload, config: Config, gpu: Gpu, density: float, evicted: bool = False) -> float:
    """Return the clocks of the busiest multiprocessor, or of the memory.

    `evicted` says that the L2 cache has lost the code since the last call, as it does in a large network.
    """
    body, warps = instructions(workload, config, density), ceil_div(config.threads, WARP)
    grid, bodies = blocks(workload, config), ceil_div(workload.out_channels, config.block_m)
    share = ceil_div(grid * bodies, gpu.multiprocessors)
    together = min(share, resident_blocks(workload, config, gpu))
    running = min(bodies, max(1.0, together * gpu.multiprocessors / grid))  # of the bodies, at a time
    chunks = workload.in_channels // config.block_c

    code = INSTRUCTION_BYTES * body
    missed = body * _missed(code, NEAR_CODE)
    busy = warps * body / 4 + FETCHED * missed
    behind = max(0.0, LATENCY - (config.num_stages - 1) * busy / chunks)
    waiting = chunks * BARRIER + LATENCY + (chunks - 1) * behind
    computing = share / together * hypot(together * busy, busy + MISSED * missed + waiting)
    starting = COLD * body * min(bodies, share) * (1 + FAR_COLD * _missed(running * code, FAR_CODE))
    busiest = config.tiles * computing + starting
    if evicted and bodies * code > LARGE_CODE:
        busiest = hypot(config.tiles * computing, FROM_MEMORY * body * min(bodies, share))
    return START + _overlapped(busiest, *_moving(workload, config, gpu, together))


def _missed(size: float, room: float) -> float:
    """Return the share that is missing when it is needed again, in the same order, after so much other data."""
    return 1 / (1 + (room / size) ** 4)


def _overlapped(*times: float) -> float:
    """Return the time of things that go on side by side: little more than the longest."""
    return float(sum(time**3 for time in times) ** (1 / 3))


def _moving(workload: ConvWorkload, config: Config, gpu: Gpu, together: int) -> tuple[float, float]:
    """Return the clocks of memory and of the L2 cache, where a multiprocessor has so many blocks."""
    size, bodies = workload.itemsize, ceil_div(workload.out_channels, config.block_m)
    read, written = size * prod(workload.x_shape), size * prod(workload.output_shape)
    rows, columns = window(workload, config)
    tiles = bodies * blocks(workload, config) * config.tiles
    windows = tiles * workload.in_channels * config.images * rows * (columns * size + ROW_ENDS)
    if together * (shared_bytes(workload, config) + BLOCK_BYTES) > gpu.cached_shared_bytes:
        windows = windows * 3 // 2
    row = config.tile[1] * size
    cut = row % SECTOR > 0 and config.tile[1] < workload.output_size[1]
    written *= 1 + workload.epilogue.residual  # which is read where the output is written
    stored = written * (1 + (ROW_ENDS + SECTOR * cut) / row)
    again = (bodies - 1) * max(0.0, 1 - READ_AGAIN * gpu.l2_room / read)
    beyond = max(0.0, 1 - gpu.l2_room / (read + written))
    memory = beyond * (read * (1 + again) + stored)
    return memory / gpu.memory_bytes / gpu.multiprocessors, (windows + stored) / L2_BYTES / gpu.multiprocessors


def resident_blocks(workload: ConvWorkload, config: Config, gpu: Gpu) -> int:
    """Return the number of blocks that a multiprocessor has room for at once."""
    warps = ceil_div(config.threads, WARP)
    taken = ceil_to(registers(workload, config), 8) * warps * WARP
    shared = shared_bytes(workload, config) + BLOCK_BYTES
    return max(1, min(REGISTERS // taken, gpu.shared_bytes // shared, gpu.warps // warps))


def instructions(workload: ConvWorkload, config: Config, density: float) -> float:
    """Return the instructions of a thread, which has no loops: the code of a block of output channels."""
    products = density * config.outputs * (workload.in_channels // workload.groups) * prod(workload.kernel)
    staging = (3 if copies(workload) else 6) * workload.in_channels * places(workload, config)
    end = workload.epilogue
    epilogue = 2 * end.residual + end.shift + end.operations(to_half=False)
    return products + loads(workload, config, density) + staging + (2 + epilogue) * config.outputs


def loads(workload: ConvWorkload, config: Config, density: float) -> float:
    """Return the elements that a thread reads from shared memory: those that one of its products needs."""
    return workload.in_channels * elements(workload, config) * (1 - (1 - density) ** config.block_m)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take weights that are compiled in."""
    return None if problem.sparsity is not None else "is for weights that are compiled in"


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the busiest multiprocessor should take, or the memory."""
    return clocks(problem.workload, config, gpu_of(target), problem.density)


def ablations(config: Config) -> dict[str, Config]:
    """Return the configuration without each of its optimizations in turn, by the name of what is left out."""
    return {
        "prefetch": replace(config, num_stages=1),
        "shared inputs": replace(config, block_m=1),
        "rows": replace(config, thread_y=1, threads_y=config.threads_y * config.thread_y),
    }


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations worth trying for a workload and a share of non-zeros, legal on the target."""
    checks = constraints(problem, target)
    return Space(default_config(problem, target), LEAST, knobs(problem), checks, heuristics(problem))


def knobs(problem: Problem) -> dict[str, tuple[int, ...]]:
    """Return the values of each knob that are worth trying."""
    workload = problem.workload
    height, width = workload.output_size

    def few_tiles(extent: int, least: int, most: int) -> tuple[int, ...]:
        return tuple(size for size in tile_sizes(extent) if least <= size <= most and wasted(extent, size) <= 1.15)

    return {
        "block_m": tuple(
            sorted({ceil_div(workload.out_channels, parts) for parts in (1, 2, 3, 4, 5, 8, 10, 16, 32, 64)})
        ),
        "images": divisors(workload.batch, 8) if height * width <= 256 and not problem.open_sizes else (1,),
        "threads_y": few_tiles(height, 1, 32),
        "threads_x": few_tiles(width, min(width, 8), 256) + ((WARP,) if height * width < WARP else ()),
        "thread_y": (1, 2, 4),
        "thread_x": (1,),
        "block_c": divisors(workload.in_channels, 32),
        "num_stages": (1, 2, 3, 4),
        "tiles": (1,),
    }


def heuristics(problem: Problem) -> dict[str, Callable[[Config], bool]]:
    """Return tests that select legal configurations worth building, by name."""
    workload, density = problem.workload, problem.density

    def whole_warps(config: Config) -> bool:
        return WARP <= config.threads <= 1024 and wasted(config.threads, WARP) <= 1.15

    def little_waste(config: Config) -> bool:
        return prod(map(wasted, workload.output_size, config.tile)) <= 1.15

    def little_code(config: Config) -> bool:
        body = instructions(workload, config, density)
        products = density * prod(workload.w_shape)
        most = max(MOST_CODE, 2 * products)
        return body <= MOST_INSTRUCTIONS and ceil_div(workload.out_channels, config.block_m) * body <= most

    return named(whole_warps, little_waste, little_code)


@lru_cache(maxsize=64)  # the model tries thousands
def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the configuration that should be the fastest for a share of non-zeros."""
    workload, gpu = problem.workload, gpu_of(target)
    legal = constraints(problem, target).values()
    for checks in ((*heuristics(problem).values(), *legal), tuple(legal)):
        every = (Config(*values) for values in product(*knobs(problem).values()))
        found = [config for config in every if all(holds(config) for holds in checks)]
        if found:
            return min(found, key=lambda config: clocks(workload, config, gpu, problem.density))
    raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")


def pays(
    problem: Problem,
    config: Config,
    target: tvm.target.Target,
    weight_bytes: int,
    dense_cycles: Callable[[], float],
) -> bool:
    """Return whether the kernel should be faster than the dense one, by the models of both.

    In a network whose weights are more than the L2 cache has room for, code has left it before the kernel runs again;
    dense weights have too, but are read ahead.
    """
    gpu = gpu_of(target)
    evicted = weight_bytes > gpu.l2_room
    return FLATTERED * clocks(problem.workload, config, gpu, problem.density, evicted) < dense_cycles()


def features(problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    workload, density, gpu = problem.workload, problem.density, gpu_of(target)
    grid, bodies = blocks(workload, config), ceil_div(workload.out_channels, config.block_m)
    share, resident = ceil_div(grid * bodies, gpu.multiprocessors), resident_blocks(workload, config, gpu)
    return {
        "clocks": clocks(workload, config, gpu, density),
        "instructions": instructions(workload, config, density),
        "loads": loads(workload, config, density),
        "places": places(workload, config),
        "bodies": bodies,
        "blocks": grid,
        "outputs": config.outputs,
        "threads": config.threads,
        "chunks": workload.in_channels // config.block_c,
        "warps": min(share, resident) * ceil_div(config.threads, WARP),
        "resident": resident,
        "balance": share * gpu.multiprocessors / (grid * bodies),
        "shared_bytes": shared_bytes(workload, config),
        "row_bytes": config.tile[1] * workload.itemsize,
        "halo": prod(window(workload, config)) / prod(config.tile),
        "waste": prod(map(wasted, workload.output_size, config.tile)),
    }
