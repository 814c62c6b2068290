"""Direct convolution on CUDA: a matrix product of the weight with columns of the input, made in shared memory only.

A block computes a tile of output channels (rows of the product) by pixels of all images (its columns), and a thread a
micro-tile of it in registers. The reduction goes chunk by chunk through shared memory, the next chunks being on their
way while one is used. Where the tiles are too few for the GPU, blocks share the reduction and a second kernel adds up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
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
WARP = 32
VECTOR = 4
COPY_THREADS = 256
"""Threads of a block that lays out the weight, or adds up the parts."""
SMALLEST_TILE = 32
"""Channels and pixels of the smallest block that is worth a trial."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `vthreads * threads * outputs of a thread` channels and pixels."""

    threads_m: int
    """Threads of a block along the output channels."""
    threads_n: int
    """Threads of a block along the pixels."""
    lanes_m: int
    """Threads of a warp along the output channels; the others of its 32 lie along the pixels."""
    vthreads_m: int
    """Strided parts of a block; each thread works in all of them."""
    vthreads_n: int
    channels: int
    """Neighbouring output channels a thread computes in each of its vthreads."""
    pixels: int
    """Neighbouring pixels, likewise."""
    chunk_c: int
    """Input channels of a chunk of the reduction."""
    chunk_r: int
    """Rows of the kernel in a chunk."""
    chunk_s: int
    """Columns of the kernel in a chunk."""
    stages: int = 1
    """Chunks in shared memory: 1 computes after each copy, more copy the next ones meanwhile."""
    asynchronous: bool = False
    """Copy the next chunks with cp.async, else one through registers."""
    packed: bool = False
    """Lay the weight out in tiles first, else read it as it is."""
    load: int = 1
    """Neighbouring elements of the packed weight that one load instruction reads."""
    store: int = 1
    """Neighbouring pixels that one store instruction writes."""
    parts: int = 1
    """Parts of the reduction that blocks share."""

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n

    @property
    def block_m(self) -> int:
        """Output channels of a block."""
        return self.vthreads_m * self.threads_m * self.channels

    @property
    def block_n(self) -> int:
        """Pixels of a block."""
        return self.vthreads_n * self.threads_n * self.pixels

    @property
    def outputs(self) -> int:
        """Outputs of a thread."""
        return self.vthreads_m * self.channels * self.vthreads_n * self.pixels

    @property
    def chunk(self) -> int:
        """Terms of the reduction in a chunk."""
        return self.chunk_c * self.chunk_r * self.chunk_s


LEAST = Config(
    threads_m=1,
    threads_n=1,
    lanes_m=1,
    vthreads_m=1,
    vthreads_n=1,
    channels=1,
    pixels=1,
    chunk_c=1,
    chunk_r=1,
    chunk_s=1,
)


def space(workload: ConvWorkload, target: tvm.target.Target) -> Space[Config]:
    """The configurations that are worth a trial on this target."""
    channels, (r, s) = workload.w_shape[1], workload.kernel
    knobs = {
        "threads_m": (4, 8, 12, 16),
        "threads_n": (8, 16, 32),
        "lanes_m": (4,),
        "vthreads_m": (1, 2, 3, 4),
        "vthreads_n": (1, 2, 4),
        "channels": (VECTOR,),
        "pixels": (VECTOR,),
        "chunk_c": divisors(channels, 16),
        "chunk_r": tuple(sorted({1, r})),
        "chunk_s": tuple(sorted({1, s})),
        "stages": (1, 2, 3),
        "asynchronous": (False, True),
        "packed": (True,),
        "load": (VECTOR,),
        "store": (widest_store(workload, VECTOR),),
        "parts": divisors(channels, 32),
    }
    default = default_config(workload, target)
    return Space(default, LEAST, knobs, constraints(workload, target), heuristics(workload))


def constraints(workload: ConvWorkload, target: tvm.target.Target) -> dict[str, Callable[[Config], bool]]:
    """What a configuration must meet, by name."""
    max_threads = int(target.attrs["max_threads_per_block"])
    max_shared = int(target.attrs["max_shared_memory_per_block"])
    channels, kernel = workload.w_shape[1], workload.kernel
    plane = prod(workload.output_size)

    def whole_warps(config: Config) -> bool:
        lanes_n = WARP // config.lanes_m
        return (
            WARP % config.lanes_m == 0
            and config.threads_m % config.lanes_m == 0
            and config.threads_n % lanes_n == 0
            and config.threads <= max_threads
        )

    def whole_groups(config: Config) -> bool:
        return workload.groups == 1 or workload.multiplier % config.block_m == 0

    def whole_chunks(config: Config) -> bool:
        return (
            channels % config.parts == 0
            and channels // config.parts % config.chunk_c == 0
            and kernel[0] % config.chunk_r == 0
            and kernel[1] % config.chunk_s == 0
        )

    def pipeline(config: Config) -> bool:
        """cp.async copies 4 bytes at least; registers hold one chunk; and a pipeline has as many chunks as stages."""
        fits = workload.dtype == "float32" if config.asynchronous else config.stages <= 2
        return fits and (config.stages > 1 or not config.asynchronous) and chunks(workload, config) >= config.stages

    def whole_loads(config: Config) -> bool:
        whole = config.block_m % config.load == 0 and config.load * workload.itemsize <= 16
        return config.load == 1 or (config.packed and config.load in (2, 4, 8) and whole)

    def whole_stores(config: Config) -> bool:
        return config.store in (1, 2, 4) and plane % config.store == 0 and config.pixels % config.store == 0

    def shared_memory(config: Config) -> bool:
        return shared_bytes(workload, config) <= max_shared

    def registers(config: Config) -> bool:
        """Beside the outputs, what a thread copies: addresses, and elements where they go through registers."""
        copies = config.chunk * (config.block_m / config.load + config.block_n) / config.threads
        held = config.chunk * (config.block_m + config.block_n) / config.threads
        through = not config.asynchronous and config.stages > 1
        return config.outputs <= 144 and copies <= 64 and (held <= 24 or not through)

    def straight_line(config: Config) -> bool:
        return config.outputs * config.chunk * config.stages <= 8192

    def grid(config: Config) -> bool:
        return blocks(workload, config) < 2**31 and config.parts < 2**16

    return named(
        whole_warps,
        whole_groups,
        whole_chunks,
        pipeline,
        whole_loads,
        whole_stores,
        shared_memory,
        registers,
        straight_line,
        grid,
    )


def heuristics(workload: ConvWorkload) -> dict[str, Callable[[Config], bool]]:
    """Which legal configurations are worth building, by name."""

    def little_waste(config: Config) -> bool:
        pixels = workload.batch * prod(workload.output_size)
        return wasted(workload.multiplier, config.block_m) * wasted(pixels, config.block_n) <= max(
            1.25, wasted(workload.multiplier, SMALLEST_TILE) * wasted(pixels, SMALLEST_TILE)
        )

    def short_chunks(config: Config) -> bool:
        return 6 <= config.chunk <= 24 or config.chunk == workload.w_shape[1] * prod(workload.kernel)

    def whole_gpu(config: Config) -> bool:
        count = blocks(workload, config)
        return config.parts == 1 or MULTIPROCESSORS <= count <= 8 * MULTIPROCESSORS

    return named(little_waste, short_chunks, whole_gpu)


def default_config(workload: ConvWorkload, target: tvm.target.Target) -> Config:
    """The legal configuration, of a few, that a simple model of an H100 finds the fastest."""
    checks = constraints(workload, target).values()
    channels = workload.w_shape[1]
    padded = any(workload.padding) or workload.dtype != "float32"
    best, least = None, float("inf")
    for threads_m, threads_n, lanes_m, vthreads_m, vthreads_n, width, parts in product(
        (16, 8, 4, 2, 1), (32, 16, 8, 4), (4, 2, 1), (2, 1), (2, 1), (4, 2, 1), divisors(channels, 32)
    ):
        chunk = _chunk(workload, parts)
        config = Config(
            threads_m=threads_m,
            threads_n=threads_n,
            lanes_m=lanes_m,
            vthreads_m=vthreads_m,
            vthreads_n=vthreads_n,
            channels=width,
            pixels=VECTOR,
            chunk_c=chunk[0],
            chunk_r=chunk[1],
            chunk_s=chunk[2],
            packed=True,
            load=width,
            store=widest_store(workload, VECTOR),
            parts=parts,
        )
        # A predicated cp.async is a branch, a predicated load is not: padding goes through registers, if they do.
        for stages in {min(chunks(workload, config), 2 if padded else 3), 1}:
            config = replace(config, stages=stages, asynchronous=not padded and stages > 1)
            estimate = _estimate(workload, config)
            if estimate < least and all(holds(config) for holds in checks):
                best, least = config, estimate
    if best is None:
        raise NoValidConfigurationError(f"{workload}: no configuration is legal on {target}")
    return best


def ablations(config: Config) -> dict[str, Config]:
    """The configuration without each of its optimizations in turn, by the name of what is missing.

    Without the micro-kernel a thread computes a single output. Not all are legal for every workload, or differ from
    the configuration.
    """
    single = {"vthreads_m": 1, "vthreads_n": 1, "channels": 1, "pixels": 1, "store": 1}
    return {
        "micro-kernel": replace(config, threads_m=16, threads_n=32, lanes_m=4, load=min(config.load, VECTOR), **single),
        "vector loads": replace(config, load=1, store=1),
        "prefetch": replace(config, stages=1, asynchronous=False),
        "packing": replace(config, packed=False, load=1),
    }


def _chunk(workload: ConvWorkload, parts: int) -> tuple[int, int, int]:
    """A chunk of some eight terms: input channels for one tap, and more taps where channels are too few."""
    r, s = workload.kernel
    sizes = product(divisors(workload.w_shape[1] // parts, 8), {1, r}, {1, s})
    return min(sizes, key=lambda size: (abs(prod(size) - 8), -size[0]))


def _estimate(workload: ConvWorkload, config: Config) -> float:
    """Clocks of an H100, roughly: what the busiest multiprocessor computes, and what goes through memory."""
    terms = workload.w_shape[1] * prod(workload.kernel) // config.parts
    loads = config.vthreads_m * config.channels + config.vthreads_n * config.pixels
    share = ceil_div(blocks(workload, config), MULTIPROCESSORS)
    warps = min(16, share * config.threads / WARP)  # fewer than some eight do not hide the latency of shared memory
    rate = 128 * min(1.0, warps / 8) * config.outputs / (config.outputs + 1.25 * loads)
    stored = prod(workload.output_shape) * (workload.itemsize + (8 * config.parts if config.parts > 1 else 0))
    staging = (config.block_n + config.block_m / config.load) / WARP  # instructions of a term, four in a clock
    waiting = 2 if config.stages == 1 and chunks(workload, config) > 1 else 1
    computing = waiting * share * (terms + 100) * (config.block_m * config.block_n / rate + staging)
    return computing + stored / 1500 + (2000 if config.parts > 1 else 0)


def widest_store(workload: ConvWorkload, pixels: int) -> int:
    """Neighbouring pixels, of so many, that one instruction can store wherever they begin."""
    return next(width for width in (4, 2, 1) if pixels % width == 0 and prod(workload.output_size) % width == 0)


def chunks(workload: ConvWorkload, config: Config) -> int:
    """Chunks that a block goes through."""
    return workload.w_shape[1] // config.parts * prod(workload.kernel) // config.chunk


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Blocks of the grid, without those that lay out the weight or add up the parts."""
    rows = workload.groups * ceil_div(workload.multiplier, config.block_m)
    return config.parts * rows * ceil_div(workload.batch * prod(workload.output_size), config.block_n)


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Shared memory of a block, in bytes; of weights that are not packed TVM leaves out the end of the last row."""
    row = config.block_m if config.packed else ceil_div(config.block_m - VECTOR, WARP) * WARP + VECTOR
    buffers = (width * config.chunk * config.stages * workload.itemsize for width in (row, config.block_n))
    return sum(ceil_div(size, SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in buffers)


def schedule(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> Schedule:
    """The workload's computation, scheduled; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    tile = (config.block_m, config.block_n)
    sch = Schedule(te.create_prim_func(compute.implicit_gemm(workload, tile, config.parts)))
    pad, columns, weight, accumulate, planes, output = (
        sch.get_sblock(name) for name in ("pad", "columns", "packed", "direct", "planes", "output")
    )
    sch.compute_inline(pad)

    # Step 1. What a block computes goes through registers to the output, or to a kernel that adds up the parts
    result = sch.cache_write(accumulate, 0, "local")
    if config.parts > 1:
        thread = _spread(sch, sch.get_loops(output), COPY_THREADS, 1, "blockIdx.x")
        sch.compute_at(planes, thread, preserve_unit_loops=True)
        sch.set_scope(planes, 0, "local")
    else:
        sch.compute_inline(planes)
        sch.reverse_compute_inline(output)
    part, m, p = sch.get_loops(result)

    # Step 2. Tile the output: blocks, vthreads (strided), warps, the lanes of a warp, then what a thread owns
    bm, vm, tm, mi = sch.split(m, [None, config.vthreads_m, config.threads_m, config.channels])
    bn, vn, tn, ni = sch.split(p, [None, config.vthreads_n, config.threads_n, config.pixels])
    wm, lm = sch.split(tm, [None, config.lanes_m])
    wn, ln = sch.split(tn, [None, WARP // config.lanes_m])
    sch.reorder(part, bn, bm, vm, vn, wm, wn, lm, ln, mi, ni)
    sch.bind(sch.fuse(bn, bm), "blockIdx.x")  # blocks that read the same input run side by side
    sch.bind(part, "blockIdx.y")
    sch.bind(vm, "vthread.y")
    sch.bind(vn, "vthread.x")
    thread = sch.fuse(wm, wn, lm, ln)
    sch.bind(thread, "threadIdx.x")

    # Step 3. Accumulate in registers, chunk by chunk
    sch.compute_at(accumulate, thread, preserve_unit_loops=True)
    *_, mi, ni, c, r, s = sch.get_loops(accumulate)
    co, ci = sch.split(c, [None, config.chunk_c])
    ro, ri = sch.split(r, [None, config.chunk_r])
    so, si = sch.split(s, [None, config.chunk_s])
    sch.reorder(co, ro, so, ci, ri, si, mi, ni)
    chunk, term = sch.fuse(co, ro, so), sch.fuse(ci, ri, si)
    for loop in (term, mi, ni):
        sch.unroll(loop)

    # Step 4. Stage each chunk in shared memory, where pixels find their places and padding
    if config.packed:
        _spread(sch, sch.get_loops(weight), COPY_THREADS, 1, "blockIdx.x")
        weight = sch.cache_read(accumulate, 0, "shared")
    sch.set_scope(weight, 0, "shared")
    sch.set_scope(columns, 0, "shared")
    for stage in (weight, columns):
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
    copied = sch.get_loops(weight)[-5:]
    if not config.packed:
        # Along the terms the weight lies in memory; rows four banks apart let them be stored side by side.
        copied = [copied[-1], *copied[:-1]]
        sch.reorder(*copied)
        sch.storage_align(weight, 0, -2, WARP, VECTOR)
    _spread(sch, copied, config.threads, config.load)
    _spread(sch, sch.get_loops(columns)[-5:], config.threads, 1)
    sch.decompose_reduction(accumulate, chunk)
    _pipeline(sch, config, chunk, weight, columns)

    # Step 5. Store
    *_, mi, ni = sch.get_loops(result)
    sch.unroll(mi)
    if config.store > 1:
        ni, lanes = sch.split(ni, [None, config.store])
        sch.vectorize(lanes)
    sch.unroll(ni)
    return sch


def _pipeline(sch: Schedule, config: Config, chunk: LoopRV, *stages: SBlockRV) -> None:
    """Copies chunks while another is computed: with cp.async, or through registers into the other buffer of two."""
    if config.stages == 1:
        return
    if config.asynchronous:
        sch.annotate(chunk, "software_pipeline_stage", [0, 0, config.stages - 1])
        sch.annotate(chunk, "software_pipeline_order", [0, 1, 2])
        sch.annotate(chunk, "software_pipeline_async_stages", [0])
    else:
        for stage in stages:
            sch.annotate(stage, "tirx.manifest_shared_memory_local_stage", 1)
            sch.annotate(stage, "double_buffer_scope", 0)
        # Load, load, compute, store, store: the loads have all of the computation to arrive in.
        sch.annotate(chunk, "software_pipeline_stage", [0, 0, 0, 0, 1])
        sch.annotate(chunk, "software_pipeline_order", [0, 3, 1, 4, 2])


def _spread(sch: Schedule, loops: list[LoopRV], threads: int, vector: int, outer: str | None = None) -> LoopRV:
    """Vector after vector of a copy to thread after thread; the outer steps unrolled, or bound."""
    steps, thread, lanes = sch.split(sch.fuse(*loops), [None, threads, vector])
    if outer is not None:
        sch.bind(steps, outer)
    sch.bind(thread, "threadIdx.x")
    if vector > 1:
        sch.vectorize(lanes)
    return thread
