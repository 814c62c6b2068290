"""Depthwise convolution on CUDA: a block computes one tile of one or several output planes.

The schedule of the TVM depthwise tutorial (blocking, thread and vthread counts, shared memory, fused epilogue), written
for s_tir, with padding resolved while the input tile is staged and several small planes in one block.

On an H100 in float32 it takes, tuned, as long as a copy of the same bytes for large planes with 3x3 kernels, up to 1.25
times as long for most others, and 1.45 times for the largest kernels (benchmarks/depthwise-h100.json).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.errors import NoValidConfigurationError
from tvmconv.workload import ConvWorkload

from ..space import Space, ceil_div, divisors, named, wasted
from .machine import MULTIPROCESSORS, SHARED_ALIGNMENT

VERSION = 1
FULL_GPU_THREADS = 65536
"""What the default configuration takes for a full GPU: 512 threads on each of some 130 multiprocessors."""

BLOCK_THREADS = 128
NARROW = 8
"""Columns of a plane up to which a thread of the default configuration takes whole rows."""

WASTE = 1.15
"""How many outputs, in parts of those wanted, the default configuration may compute at the bottom of a plane."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `vthreads * threads * outputs of a thread` in y and in x."""

    planes: int
    """Output channels a block computes."""
    threads_y: int
    threads_x: int
    vthreads_y: int
    """Strided parts of a block; each thread works in all of them."""
    vthreads_x: int
    rows: int
    """Neighbouring rows a thread computes in each of its vthreads."""
    columns: int
    """Neighbouring columns, likewise."""
    vector: int
    """Neighbouring outputs that one store instruction writes."""
    unroll: int
    """Tap loops unrolled, from the innermost: 0 none, 1 a row of the kernel, 2 all of it."""
    shared_input: bool
    """Stage the input tile in shared memory, else read it through the cache: once into registers where all taps are
    unrolled, so that outputs share what they read, else tap by tap."""
    shared_filter: bool
    """Stage the filter in shared memory, else read it through the cache."""
    load: int = 1
    """Neighbouring elements of the input that one load instruction reads, where it is staged or copied."""
    siblings: int = 1
    """Output channels of one input channel that a thread computes from the same window: one of them or all."""
    flat: bool = False
    """Copy whole planes into shared memory and out of it as they lie in memory, so that any width is coalesced."""

    @property
    def threads_z(self) -> int:
        return ceil_div(self.planes, self.siblings)

    @property
    def threads(self) -> int:
        return self.threads_z * self.threads_y * self.threads_x

    @property
    def block_y(self) -> int:
        """Rows of a block."""
        return self.vthreads_y * self.threads_y * self.rows

    @property
    def block_x(self) -> int:
        """Columns of a block."""
        return self.vthreads_x * self.threads_x * self.columns

    @property
    def outputs(self) -> int:
        """Outputs a thread keeps in registers."""
        return self.siblings * self.vthreads_y * self.vthreads_x * self.rows * self.columns


LEAST = Config(
    1, 1, 1, 1, 1, 1, 1, 1, unroll=0, shared_input=False, shared_filter=False, load=1, siblings=1, flat=False
)


def space(workload: ConvWorkload, target: tvm.target.Target) -> Space[Config]:
    """The configurations worth trying for a workload, legal on the target."""
    height, width = workload.output_size
    default = default_config(workload, target)

    def upto(limit: int, *values: int) -> set[int]:
        return {value for value in values if value <= limit}

    rows, columns = upto(height, 1, 2, 3, 4, 6, 7, 8), upto(width, 1, 2, 4, 7)
    whole_height = upto(64, *(ceil_div(height, n) for n in rows))
    whole_width = upto(64, *(ceil_div(width, n) for n in columns))
    # What of the input fits into registers belongs there; only what does not is staged.
    staged = default.shared_input
    knobs = {
        "planes": {*whole_planes(workload, 64)},
        "threads_y": upto(2 * height - 1, 1, 2, 4, 8, 16) | whole_height,
        "threads_x": upto(2 * width - 1, 1, 4, 8, 16, 32, 56) | whole_width,
        "vthreads_y": upto(height, 1, 2) if staged else {1},
        "vthreads_x": upto(width, 1, 2) if staged else {1},
        "rows": rows,
        "columns": columns,
        "vector": upto(16 // workload.itemsize, 1, 2, 4),
        "unroll": {default.unroll},
        "shared_input": {staged, False},
        "shared_filter": {False, True},
        "load": upto(16 // workload.itemsize, 1, 2, 4, 8),
        "siblings": {1, workload.multiplier},
        "flat": {False, True},
    }
    values = {name: tuple(sorted(several | {getattr(default, name)})) for name, several in knobs.items()}
    return Space(default, LEAST, values, constraints(workload, target), heuristics(workload))


def constraints(workload: ConvWorkload, target: tvm.target.Target) -> dict[str, Callable[[Config], bool]]:
    """What a configuration must meet, by name."""
    max_threads = int(target.attrs["max_threads_per_block"])
    max_shared = int(target.attrs["max_shared_memory_per_block"])
    height, width = workload.output_size

    def whole_channels(config: Config) -> bool:
        return config.planes in whole_planes(workload, config.planes)

    def whole_vectors(config: Config) -> bool:
        own = config.flat or config.columns % config.vector == 0
        return config.vector in (1, 2, 4) and own and width % config.vector == 0

    def whole_loads(config: Config) -> bool:
        return (
            config.load in (1, 2, 4, 8) and workload.width % config.load == 0 and config.load * workload.itemsize <= 16
        )

    def aligned_loads(config: Config) -> bool:
        """What is staged begins at a whole load, whatever thread or block stages it."""
        staged = config.block_x if config.shared_input else config.columns if config.unroll == 2 else 0
        return config.load == 1 or config.flat or (staged > 0 and staged * workload.stride[1] % config.load == 0)

    def whole_siblings(config: Config) -> bool:
        return config.siblings in (1, workload.multiplier) and config.planes % config.siblings == 0

    def whole_planes_in_registers(config: Config) -> bool:
        """In one piece, too: with vthreads TVM's kernels are wrong on a GPU, though not their serial twins."""
        whole = config.block_y >= height and config.block_x >= width
        window = config.unroll == 2 and not config.shared_input
        return not config.flat or (whole and window and config.vthreads_y == config.vthreads_x == 1)

    def waste(config: Config) -> bool:
        return wasted(height, config.block_y) * wasted(width, config.block_x) <= 2

    def threads(config: Config) -> bool:
        return config.threads <= max_threads and config.threads_z <= 64

    def shared_memory(config: Config) -> bool:
        return shared_bytes(workload, config) <= max_shared

    def registers(config: Config) -> bool:
        return config.outputs <= 64 and window_elements(workload, config) <= 128

    def straight_line(config: Config) -> bool:
        unrolled = (1, workload.kernel[1], prod(workload.kernel))
        return config.unroll < len(unrolled) and config.outputs * unrolled[config.unroll] <= 4096

    def grid(config: Config) -> bool:
        return blocks(workload, config) < 2**31

    return named(
        whole_channels,
        whole_vectors,
        whole_loads,
        aligned_loads,
        whole_siblings,
        whole_planes_in_registers,
        waste,
        threads,
        shared_memory,
        registers,
        straight_line,
        grid,
    )


def heuristics(workload: ConvWorkload) -> dict[str, Callable[[Config], bool]]:
    """Which legal configurations are worth building, by name; without them a space has some hundred times as many."""
    height, width = workload.output_size
    share = prod(workload.output_shape) / FULL_GPU_THREADS

    def widest_stores(config: Config) -> bool:
        return config.flat or config.columns == config.vector or width % config.columns != 0

    def neighbours_read_together(config: Config) -> bool:
        return config.flat or (config.columns <= 4 and config.threads_x > 1)

    def whole_warps(config: Config) -> bool:
        return config.threads <= 256 and wasted(config.threads, 32) <= 1.35

    def enough_threads(config: Config) -> bool:
        return config.threads >= 32 and blocks(workload, config) >= min(MULTIPROCESSORS, 512 * share)

    def little_waste(config: Config) -> bool:
        return wasted(height, config.block_y) <= 1.2 and wasted(width, config.block_x) <= 1.2

    def few_registers(config: Config) -> bool:
        return config.outputs <= 32

    def enough_work(config: Config) -> bool:
        return config.outputs >= min(4, share / 2)

    def one_stage(config: Config) -> bool:
        return not (config.shared_input and config.shared_filter)

    def one_way_of_striding(config: Config) -> bool:
        return config.vthreads_y * config.vthreads_x <= 2

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


def default_config(workload: ConvWorkload, target: tvm.target.Target) -> Config:
    """A legal configuration that is reasonable for any workload.

    What was fast on an H100: a window in registers, read once by loads as wide as stores; one block as wide as the
    plane; all outputs of a channel in one thread. Planes too narrow for that go through shared memory as they lie. So
    does the tile of a window too large for registers, and one too large for both is read through the cache.
    """
    checks = constraints(workload, target).values()
    for config in _candidates(workload):
        if all(holds(config) for holds in checks):
            return config
    raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")


def _candidates(workload: ConvWorkload) -> Iterator[Config]:
    """Configurations for the default, the best first; not all are legal."""
    height, width = workload.output_size
    m, share = workload.multiplier, prod(workload.output_shape) // FULL_GPU_THREADS
    if width <= NARROW:
        for planes in reversed(whole_planes(workload, min(64, ceil_div(2 * BLOCK_THREADS, height)))):
            if planes * height >= 32:
                yield replace(
                    LEAST, planes=planes, threads_y=height, columns=width, unroll=2, shared_filter=True, flat=True
                )

    most = max(4, min(16, share))  # outputs of a thread, of one channel
    widest = 4 if share >= 32 else 2
    ways = ((False, 2, 4), (True, 2, 1), (True, 1, 1), (False, 2, 1), (True, 0, 1), (False, 0, 1))
    for shared, unroll, least in ways:
        for columns in (n for n in (4, 2, 1) if n <= widest and width % n == 0):
            threads_x = _threads(ceil_div(width, columns))
            heights = [n for n in range(1, 9) if least <= n * columns <= most and wasted(height, n) <= WASTE]
            for rows in reversed(heights or [1]):
                steps = ceil_div(height, rows)
                threads_y = ceil_div(steps, ceil_div(steps, max(1, BLOCK_THREADS // threads_x)))
                siblings = m if m <= 4 and m * rows * columns <= 32 else 1
                room = max(1, BLOCK_THREADS // (threads_x * threads_y)) * siblings
                for planes in reversed(whole_planes(workload, min(room, 64))):
                    for load in (columns, 1):
                        yield replace(
                            LEAST,
                            planes=planes,
                            threads_y=threads_y,
                            threads_x=threads_x,
                            rows=rows,
                            columns=columns,
                            vector=columns,
                            unroll=unroll,
                            shared_input=shared,
                            shared_filter=not shared and prod(workload.kernel) * m > 9,
                            load=load,
                            siblings=siblings,
                        )


def _threads(columns: int) -> int:
    """Threads for the columns of a row: all in one block if 64 do, and a power of two if that wastes little."""
    threads = ceil_div(columns, ceil_div(columns, 64))
    rounded = 1 << (threads - 1).bit_length()
    return rounded if rounded <= 1.2 * threads else threads


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    tile = (config.block_y, config.block_x)
    lanes = 1 if config.flat else config.load
    sch = Schedule(te.create_prim_func(compute.depthwise(workload, tile, lanes)))
    pad, accumulate, output = (sch.get_sblock(name) for name in ("pad", "depthwise", "output"))
    operands = range(1, len(sch.get(output).reads))
    vectors = [sch.cache_read(output, operand, "local") for operand in operands]
    copies = (sch.cache_read(pad, 0, "shared"), sch.cache_write(output, 0, "shared")) if config.flat else None

    # Step 1. Tile the output: blocks, vthreads (strided), threads, then what a thread owns
    n, k, y, x = sch.get_loops(output)
    bk, tz, ki = sch.split(k, [None, config.threads_z, config.siblings])
    by, vy, ty, yi = sch.split(y, [None, config.vthreads_y, config.threads_y, config.rows])
    bx, vx, tx, xi = sch.split(x, [None, config.vthreads_x, config.threads_x, config.columns])
    sch.reorder(n, bk, by, bx, vy, vx, tz, ty, tx, ki, yi, xi)
    block = sch.fuse(n, bk, by, bx)  # only blockIdx.x is wide enough for every batch and channel count
    sch.bind(block, "blockIdx.x")
    sch.bind(vy, "vthread.y")
    sch.bind(vx, "vthread.x")

    # Step 2. Accumulate in registers; the epilogue follows in the same thread
    sch.compute_at(accumulate, tx, preserve_unit_loops=True)
    sch.set_scope(accumulate, 0, "local")

    # What the epilogue reads comes first: the end of the kernel is too late to begin waiting for it.
    for vector in vectors:
        sch.compute_at(vector, tx, preserve_unit_loops=True, index=0)

    # Step 3. Stage the input, with the padding resolved on the way
    if config.shared_input or config.unroll == 2:  # registers have no addresses: only unrolled taps can read them
        sch.compute_at(pad, block if config.shared_input else tx, preserve_unit_loops=True)
        sch.set_scope(pad, 0, "shared" if config.shared_input else "local")
        plane, row, column, *lane = sch.get_loops(pad)[-4 if lanes > 1 else -3 :]
        if config.shared_input:
            rows = sch.fuse(plane, row)
            steps_y, wz, wy = sch.split(rows, [None, config.threads_z, config.threads_y])
            steps_x, wx = sch.split(column, [None, config.threads_x])
            sch.reorder(steps_y, steps_x, wz, wy, wx)
            _bind_threads(sch, config, wz, wy, wx)
        else:
            for loop in (plane, row, column):
                sch.unroll(loop)
        for loop in lane:
            sch.vectorize(loop)
    else:
        sch.compute_inline(pad)
    if copies is not None:
        copy_in, copy_out = copies
        sch.compute_at(copy_in, block, preserve_unit_loops=True)
        sch.reverse_compute_at(copy_out, block, preserve_unit_loops=True)
        _spread_over_threads(sch, copy_in, config, config.load)
        _spread_over_threads(sch, copy_out, config, config.vector)

    # Step 4. Stage the filter
    if config.shared_filter:
        taps = sch.cache_read(accumulate, 1, "shared")
        sch.compute_at(taps, block, preserve_unit_loops=True)
        _spread_over_threads(sch, taps, config, 1)

    _bind_threads(sch, config, tz, ty, tx)

    # Step 5. Taps outside, the thread's outputs inside, and as much of it straight-line as asked for
    ni, ki, yi, xi, r, s = sch.get_loops(accumulate)[-6:]
    sch.reorder(ni, r, s, ki, yi, xi)
    for loop in (ki, yi, xi, *((), (s,), (r, s))[config.unroll]):
        sch.unroll(loop)
    sch.decompose_reduction(accumulate, r)

    # Step 6. Store
    *_, ki, yi, xi = sch.get_loops(output)
    sch.unroll(ki)
    sch.unroll(yi)
    if config.vector > 1 and not config.flat:
        xi, vector = sch.split(xi, [None, config.vector])
        sch.vectorize(vector)
    sch.unroll(xi)
    return sch


def features(workload: ConvWorkload, config: Config) -> dict[str, float]:
    """What a cost model should know beside the knobs, such that workloads can be compared; an H100 is assumed."""
    height, width = workload.output_size
    grid, shared = blocks(workload, config), shared_bytes(workload, config)
    taps, vthreads = prod(workload.kernel), config.vthreads_y * config.vthreads_x
    own = prod(input_extent(workload, (config.rows, config.columns))) * vthreads
    staged = prod(input_extent(workload, (config.block_y, config.block_x)))
    registers = 24 + config.outputs + window_elements(workload, config)
    warps = ceil_div(config.threads, 32)
    resident = max(1, min(32, 64 // warps, 227 * 1024 // (shared + 1024), 2048 // (warps * ceil_div(registers, 8) * 8)))
    waves = grid / (MULTIPROCESSORS * resident)
    run = min(width, config.threads_x * config.columns)
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
        "warps_per_sm": min(warps * resident, grid * warps / MULTIPROCESSORS),
        "waves": waves,
        "last_wave": ceil_div(grid, MULTIPROCESSORS * resident) / waves,
        "blocks_per_sm": ceil_div(grid, MULTIPROCESSORS) * MULTIPROCESSORS / grid,
        "macs_per_load": config.outputs * taps / own,
        "halo": staged / (config.block_y * config.block_x),
        "outputs_per_sm": config.outputs * config.threads * min(resident, grid / MULTIPROCESSORS),
        "run_bytes": run * workload.itemsize,
        "rows_of_warp": max(1.0, 32 / config.threads_x),
        "taps": taps,
        "plane": height * width,
        "planes": workload.batch * workload.out_channels,
    }


def whole_planes(workload: ConvWorkload, at_most: int) -> tuple[int, ...]:
    """Numbers of planes that divide the output channels into blocks, ascending.

    More than one has to be all of an input channel's: TVM cannot tell that a part of them reads one channel only, and
    would stage every channel.
    """
    m = workload.multiplier
    return tuple(p for p in divisors(workload.out_channels, at_most) if p == 1 or p % m == 0)


def window_elements(workload: ConvWorkload, config: Config) -> int:
    """Input elements a thread stages in registers, for all its vthreads."""
    if config.shared_input or config.unroll < 2:
        return 0
    return prod(input_extent(workload, (config.rows, config.columns))) * config.vthreads_y * config.vthreads_x


def staged_elements(workload: ConvWorkload, config: Config, outputs: tuple[int, int]) -> int:
    """Input elements that are staged for a tile of outputs of a channel, in whole loads."""
    rows, columns = input_extent(workload, outputs)
    surplus = -workload.padding[1] % config.load
    return rows * ceil_div(surplus + columns, config.load) * config.load


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Shared memory of a block, in bytes; where planes go through it, TVM may need less."""
    channels = ceil_div(config.planes, workload.multiplier)
    buffers = []
    if config.shared_input:
        buffers.append(channels * staged_elements(workload, config, (config.block_y, config.block_x)))
    if config.flat:
        buffers += [channels * workload.height * workload.width, config.planes * prod(workload.output_size)]
    if config.shared_filter:
        buffers.append(config.planes * prod(workload.kernel))
    *aligned, last = [workload.itemsize * elements for elements in buffers] or [0]
    return sum(ceil_div(size, SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in aligned) + last


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Blocks of the grid."""
    height, width = workload.output_size
    planes = workload.batch * workload.out_channels // config.planes
    return planes * ceil_div(height, config.block_y) * ceil_div(width, config.block_x)


def input_extent(workload: ConvWorkload, outputs: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of input that a tile of outputs reads."""
    rows, columns = (
        (count - 1) * stride + window
        for count, stride, window in zip(outputs, workload.stride, workload.window, strict=True)
    )
    return rows, columns


def _spread_over_threads(sch: Schedule, copy: SBlockRV, config: Config, vector: int) -> None:
    """Vector after vector of a block's copy to thread after thread."""
    *outer, column = sch.get_loops(copy)[-4:]
    column, lane = sch.split(column, [None, vector])
    elements = sch.fuse(*outer, column)
    _, z, y, x = sch.split(elements, [None, config.threads_z, config.threads_y, config.threads_x])
    _bind_threads(sch, config, z, y, x)
    sch.vectorize(lane)


def _bind_threads(sch: Schedule, config: Config, z: LoopRV, y: LoopRV, x: LoopRV) -> None:
    """Makes threads of three loops; in one dimension where planes are flat, for TVM to see that they are contiguous."""
    loops = (sch.fuse(z, y, x),) if config.flat else (x, y, z)
    for loop, thread in zip(loops, ("threadIdx.x", "threadIdx.y", "threadIdx.z"), strict=False):
        sch.bind(loop, thread)
