"""Convolution by a sparse weight on CUDA: the template in which every weight becomes an immediate, or nothing.

A block stages the input of a tile of pixels in shared memory, chunk of channels by chunk; neighbouring threads compute
neighbouring pixels, each of them one block of output channels (algorithm 1 of the sparse code-generation paper). The
loops marked `UNROLLED` are what `tvmconv.sparse` unrolls when it knows the weight: each block of output channels
becomes code of its own, and the blocks of pixels that run the same code are neighbours in the grid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.errors import NoValidConfigurationError
from tvmconv.sparse.copying import COPIED
from tvmconv.sparse.template import UNROLLED
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, ceil_to, divisors, named, tile_sizes, wasted
from .machine import MULTIPROCESSORS, SHARED_ALIGNMENT

VERSION = 1
BANKS = 32
WARP = 32
REGISTERS = 65536
"""Of a multiprocessor."""

MOST_REGISTERS = 255
"""Of a thread."""

SHARED_MEMORY = 228 * 1024
"""Of a multiprocessor, in bytes."""

CODE_BYTES = 32 * 1024
"""What multiprocessors fetch at their full rate."""

MOST_INSTRUCTIONS = 48000
"""Of all blocks of output channels: more take compilers longer than a configuration is worth."""

DENSITY = 0.1
"""Share of non-zeros that configurations are chosen for where none is given."""

SPARE_REGISTERS = 24
"""What a thread takes beside its outputs and what it stages."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `images * threads_y * rows * threads_x * columns` pixels."""

    channels: int
    """Output channels of a block, and of each of its threads."""
    images: int
    threads_y: int
    threads_x: int
    rows: int
    """Neighbouring rows of a thread."""
    columns: int
    """Neighbouring columns of a thread."""
    chunk: int
    """Input channels staged at a time."""
    buffers: int
    """Chunks that shared memory has room for: while one is computed, the others are on their way."""
    tiles: int = 1
    """Tiles that a block computes one after the other, by the same code."""

    @property
    def threads(self) -> int:
        return self.images * self.threads_y * self.threads_x

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a block."""
        return self.threads_y * self.rows, self.threads_x * self.columns

    @property
    def outputs(self) -> int:
        """Outputs a thread keeps in registers."""
        return self.channels * self.rows * self.columns


LEAST = Config(1, 1, 1, 1, 1, 1, 1, buffers=1)


def constraints(workload: ConvWorkload, target: tvm.target.Target) -> dict[str, Callable[[Config], bool]]:
    """What a configuration must meet, by name."""
    max_threads = int(target.attrs["max_threads_per_block"])
    max_shared = int(target.attrs["max_shared_memory_per_block"])

    def whole_chunks(config: Config) -> bool:
        return workload.in_channels % config.chunk == 0

    def chunks_for_buffers(config: Config) -> bool:
        return config.buffers * config.chunk <= workload.in_channels

    def copied_behind(config: Config) -> bool:
        return config.buffers == 1 or copies(workload)

    def whole_blocks(config: Config) -> bool:
        return blocks(workload, replace(config, tiles=1)) % config.tiles == 0

    def whole_images(config: Config) -> bool:
        return workload.batch % config.images == 0

    def threads(config: Config) -> bool:
        return config.threads <= max_threads

    def waste(config: Config) -> bool:
        return prod(map(wasted, workload.output_size, config.tile)) <= 2

    def shared_memory(config: Config) -> bool:
        return shared_bytes(workload, config) <= max_shared

    def fits_registers(config: Config) -> bool:
        return registers(workload, config) <= min(MOST_REGISTERS, REGISTERS // ceil_to(config.threads, WARP))

    def grid(config: Config) -> bool:
        return blocks(workload, config) < 2**31 and ceil_div(workload.out_channels, config.channels) < 2**16

    return named(
        whole_chunks,
        chunks_for_buffers,
        copied_behind,
        whole_blocks,
        whole_images,
        threads,
        waste,
        shared_memory,
        fits_registers,
        grid,
    )


def space(workload: ConvWorkload, target: tvm.target.Target, density: float = DENSITY) -> Space[Config]:
    """The configurations worth trying for a workload and a share of non-zeros, legal on the target."""
    height, width = workload.output_size

    def few_tiles(extent: int, least: int, most: int) -> tuple[int, ...]:
        return tuple(size for size in tile_sizes(extent) if least <= size <= most and wasted(extent, size) <= 1.15)

    knobs = {
        "channels": tuple(
            sorted({ceil_div(workload.out_channels, parts) for parts in (1, 2, 3, 4, 5, 8, 10, 16, 32, 64)})
        ),
        "images": divisors(workload.batch, 8) if height * width <= 256 else (1,),
        "threads_y": few_tiles(height, 1, 32),
        "threads_x": few_tiles(width, min(width, 8), 256),
        "rows": (1, 2, 4),
        "columns": (1,),
        "chunk": divisors(workload.in_channels, 32),
        "buffers": (1, 2, 3, 4),
        "tiles": (1,),
    }
    legal = constraints(workload, target)

    def whole_warps(config: Config) -> bool:
        return 64 <= config.threads <= 1024 and wasted(config.threads, WARP) <= 1.15

    def little_waste(config: Config) -> bool:
        return prod(map(wasted, workload.output_size, config.tile)) <= 1.15

    def little_code(config: Config) -> bool:
        bodies = ceil_div(workload.out_channels, config.channels)
        return bodies * instructions(workload, config, density) <= MOST_INSTRUCTIONS

    heuristics = named(whole_warps, little_waste, little_code)
    possible = [config for config in _all(knobs) if all(holds(config) for holds in legal.values())]
    likely = [config for config in possible if all(holds(config) for holds in heuristics.values())]
    if not possible:
        raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")
    default = min(likely or possible, key=lambda config: estimate(workload, config, density))
    return Space(default, LEAST, knobs, legal, heuristics)


def _all(knobs: dict[str, tuple[int, ...]]) -> Iterator[Config]:
    return (Config(*values) for values in product(*knobs.values()))


def default_config(workload: ConvWorkload, target: tvm.target.Target, density: float = DENSITY) -> Config:
    """The configuration that should be the fastest for a share of non-zeros."""
    return space(workload, target, density).default


def estimate(workload: ConvWorkload, config: Config, density: float = DENSITY) -> float:
    """Clocks of an H100, roughly: what the busiest multiprocessor computes, and what goes through memory.

    The numbers are fitted to 188 measurements at 90% zeros. Code comes in more slowly the more there is of it on a
    multiprocessor at a time, and each warp that is at the same place needs it only once: both show as powers of bytes
    and warps. What a multiprocessor runs for the first time costs a part of a clock an instruction on top.
    """
    body = instructions(workload, config, density)
    bodies = ceil_div(workload.out_channels, config.channels)
    warps = ceil_div(config.threads, WARP)
    room = max(
        1,
        min(
            REGISTERS // (ceil_to(registers(workload, config), 8) * warps * WARP),
            SHARED_MEMORY // (shared_bytes(workload, config) + 1024),
            64 // warps,
        ),
    )
    share = ceil_div(blocks(workload, config) * bodies, MULTIPROCESSORS)
    resident = min(room, share)
    at_a_time = min(bodies, max(1.0, resident * MULTIPROCESSORS / blocks(workload, config)))
    fetching = max(1.0, 16 * body * at_a_time / CODE_BYTES) ** -0.45
    rate = 4 * min(1.0, 0.44 * (resident * warps) ** 0.28 * fetching)
    shared = loads(workload, config, density) + staged(workload, config)
    computing = share * warps * (body / rate + 0.05 * shared)
    chunks = workload.in_channels // config.chunk
    waiting = ceil_div(share, room) * (1400 + chunks * (500 if config.buffers == 1 else 107))
    starting = 0.37 * min(bodies, share) * body
    less, more = sorted((computing + waiting + starting, workload.bytes_moved / MULTIPROCESSORS / 10.9))
    return more + less / 8 + 850


def instructions(workload: ConvWorkload, config: Config, density: float) -> float:
    """Instructions of a thread, which has no loops: as many are the code of a block of output channels."""
    products = density * config.outputs * workload.in_channels // workload.groups * prod(workload.kernel)
    staging = (3 if copies(workload) else 6) * staged(workload, config)
    return products + loads(workload, config, density) + staging + 2 * config.outputs


def staged(workload: ConvWorkload, config: Config) -> int:
    """Elements that a thread stages."""
    rows, columns = window(workload, config)
    return workload.in_channels * ceil_div(config.images * rows * columns, config.threads)


def loads(workload: ConvWorkload, config: Config, density: float) -> float:
    """Elements that a thread reads from shared memory: those that one of its products needs."""
    shared = zip((config.rows, config.columns), workload.kernel, strict=True)
    elements = prod(min(size + span - 1, size * span) for size, span in shared)
    return workload.in_channels * elements * (1 - (1 - density) ** config.channels)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Blocks of pixels: as many thread blocks has each block of output channels."""
    tiles = prod(map(ceil_div, workload.output_size, config.tile))
    return workload.batch // config.images * tiles // config.tiles


def registers(workload: ConvWorkload, config: Config) -> int:
    """Registers of a thread, roughly."""
    places = staged(workload, config) // workload.in_channels
    return config.outputs + (2 if copies(workload) else config.chunk) * places + SPARE_REGISTERS


def copies(workload: ConvWorkload) -> bool:
    """Whether the input is staged by copies that run behind the computation: they take four bytes at least."""
    return workload.itemsize == 4


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Shared memory of a block, in bytes."""
    rows, _ = window(workload, config)
    size = config.buffers * config.chunk * config.images * rows * pitch(workload, config) * workload.itemsize
    return ceil_to(size, SHARED_ALIGNMENT)


def window(workload: ConvWorkload, config: Config) -> tuple[int, int]:
    """Rows and columns of the input that a tile reads."""
    return workload.read_by(config.tile)


def pitch(workload: ConvWorkload, config: Config) -> int:
    """Elements of a row in shared memory.

    Where rows of threads are no whole warps there are some to spare, so that those at the end of one row and at the
    beginning of the next find their pixels in different banks.
    """
    _, columns = window(workload, config)
    if config.threads_x % BANKS == 0:
        return columns
    below, beside = config.rows * workload.stride[0], config.threads_x * config.columns * workload.stride[1]
    spared = (columns + more for more in range(BANKS) if ((columns + more) * below - beside) % BANKS == 0)
    return next(spared, columns)


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled with all output channels in a thread; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    sch = Schedule(te.create_prim_func(compute.sparse(workload, config.tile)))
    pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "sparse", "output"))

    # Step 1. Tile the output: blocks, threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bn, tn = sch.split(n, [None, config.images])
    by, ty, yi = sch.split(y, [None, config.threads_y, config.rows])
    bx, tx, xi = sch.split(x, [None, config.threads_x, config.columns])
    sch.reorder(bn, by, bx, tn, ty, tx, yi, xi, k)
    block, _ = sch.split(sch.fuse(bn, by, bx), [None, config.tiles])
    sch.bind(block, "blockIdx.x")
    thread = sch.fuse(tn, ty, tx)
    sch.bind(thread, "threadIdx.x")
    _unroll(sch, k=[k], other=[yi, xi])

    # Step 2. Accumulate in registers, chunk by chunk of the input channels
    sch.compute_at(accumulate, thread, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")
    ni, k, yi, xi, c, r, s = sch.get_loops(accumulate)[-7:]
    co, ci = sch.split(c, [None, config.chunk])
    sch.reorder(co, ci, r, s, ni, yi, xi, k)

    # Step 3. Stage each chunk in shared memory, where pixels find their padding
    sch.set_scope(pad, 0, "shared")
    sch.compute_at(pad, co, preserve_unit_loops=True)
    images, channels, rows, columns = sch.get_loops(pad)[-4:]
    sch.storage_align(pad, 0, -2, BANKS, pitch(workload, config) % BANKS)
    sch.reorder(channels, images, rows, columns)
    steps, lane = sch.split(sch.fuse(images, rows, columns), [None, config.threads])
    sch.bind(lane, "threadIdx.x")
    if copies(workload):
        sch.annotate(channels, COPIED, config.buffers)
    if config.buffers > 1:
        sch.annotate(co, "software_pipeline_stage", [0, config.buffers - 1])
        sch.annotate(co, "software_pipeline_order", [0, 1])

    # Step 4. Mark what the weight unrolls
    init = sch.decompose_reduction(accumulate, co)
    n0, y0, x0, k0 = sch.get_loops(init)[-4:]
    _unroll(sch, k=[k, k0], c=[channels], other=[co, ci, r, s, ni, yi, xi, n0, y0, x0, steps])
    return sch


def _unroll(sch: Schedule, **axes: list[LoopRV]) -> None:
    for axis, loops in axes.items():
        for loop in loops:
            sch.annotate(loop, UNROLLED, axis)
