"""The gradient of a depthwise convolution by its weight on CUDA.

A block takes all pixels of a channel, or a part of them, and a thread has the sums of some taps in registers. Each warp
adds up those of its threads, and the block those of its warps; where there are several parts, a second kernel adds them
up. All orders depend on shapes alone. A thread reads windows of x from global memory; for many taps of small planes,
which it would read too often, a block has planes of some images in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute import PlaneTiles, Shares, Tiles
from tvmconv.compute.gradients.weight_planes import BANKS, VECTOR
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import FURTHER_KERNEL, KERNEL, WARP, Gpu, gpu_of

from ...space import ceil_div, divisors, evenly, named, upto, wasted, with_default
from ...template import Layouts
from ..machine import SUM_BYTES
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests
from ..tensor.model import mostly_largest
from . import (
    BEGINNING,
    BLOCK_THREADS,
    CACHED_IN_FLIGHT,
    IN_FLIGHT,
    LOADING,
    OTHER_REGISTERS,
    obstacle,
    parts_bytes,
)

SUMS = 49
"""The most sums that a thread has in registers, for as many taps."""

ROOM = 150
"""The most registers for sums, and for a tile with its window."""

WARPS = 32
"""The warps for each multiprocessor: twice as many as it runs at once."""

WHOLE = 16
"""The most warps of a block that has all tiles of a channel, so that no second kernel adds up what blocks have."""

FEW_SUMS = 25
"""The most sums with which `WHOLE` warps have registers for what they read; with more, planes are in shared memory."""

PLANES_BYTES = 32 << 10
"""The most shared memory for the planes of a block, of which several share a multiprocessor."""

PLANES_THREADS = 256
"""The most threads of a block that has planes in shared memory."""

PLANES_WARPS = 16
"""The warps of such blocks for each multiprocessor, which has registers for so many."""

PLANES_ROOM = 100
"""The most registers for sums, for a tile, and for two rows of its window, of such a block."""

OF_FEW, OF_TILES, OF_PLANES = 1.5, 3.0, 1.6
"""The clocks of a product of a warp: of few sums, of more from windows in registers, and of those from planes."""

OF_FLOAT32_TILES, OF_FLOAT32_PLANES, OF_ONE_OR_TWO = 3.5, 0.87, 2.0
"""The same in float32, which is not converted: of more than few sums from windows, of those from planes, and of those
from planes of which a block has only one or two at once. Of ten layers on an H100, whose times are 0.9 to 1.2 times
these estimates."""

WAIT = 4000.0
"""The clocks that threads wait for what they read first, and for one another at the end."""


SHARED_LOADING, COPYING, ADDING = 1.5, 12.0, 25.0
"""The instructions of a thread for an element that it reads from shared memory, for one that it copies there, and for
each sum that the warps and threads of a block add up, counted in machine code for sm_90."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    block_r: int
    """The number of rows of the kernel whose sums a thread has."""
    block_s: int
    """The number of columns of the kernel whose sums a thread has."""
    rows: int
    """The number of rows of a thread's tile, which is one column wide, or with planes in shared memory two."""
    images: int
    """The number of images whose planes a block has in shared memory together; 0 to read x from global memory."""
    warps: int
    """The number of warps of a block."""
    parts: int
    """The number of blocks that share the tiles of a channel."""

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def sums(self) -> int:
        """The number of sums of a thread."""
        return self.block_r * self.block_s

    @property
    def shares(self) -> Shares:
        return Shares(self.block_r, self.block_s, self.warps, self.parts)

    @property
    def tiles(self) -> Tiles:
        """The tiles of threads that read x from global memory."""
        return Tiles(self.rows, self.shares)

    @property
    def planes(self) -> PlaneTiles:
        """The tiles of threads that read planes in shared memory."""
        return PlaneTiles(self.rows, VECTOR, self.images, self.shares)


class WeightGradient(GpuTemplate[Config]):
    """The gradient of a depthwise convolution by its weight, by multiply-adds."""

    DIRECTIONS = ("weight_gradient",)
    LAYOUTS = Layouts()
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, images=0, warps=1, parts=1)
    examples: ClassVar[tuple[Problem, ...]] = tuple(
        Problem(workload, direction="weight_gradient")
        for workload in (
            ConvWorkload.depthwise((2, 3, 12, 11), (3, 2, 3, 3), stride=2),
            ConvWorkload.depthwise((8, 2, 9, 10), (2, 1, 7, 7), dtype="float16"),
        )
    )

    MOST_UNROLLED = 2048
    """The most multiply-adds of a thread that follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle(problem)

    def registers(self, problem: Problem, config: Config) -> int:
        """Return the registers of a thread: compilers load about half of what it reads ahead."""
        return config.sums + _read_registers(problem.workload, config) // 2 + OTHER_REGISTERS

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        """Return the bytes of the sums of warps, and of planes, each of which begins at its banks."""
        workload, planes = problem.workload, 0
        if config.images:
            banks = config.planes.banks(workload)
            for plane, first in zip(map(prod, config.planes.planes(workload)), banks, strict=True):
                planes += plane + (first - plane) % BANKS
        return 4 * (config.images * planes + config.warps * config.sums)

    def most_shared_bytes(self, target: tvm.target.Target) -> int:
        return int(target.attrs["max_shared_memory_per_block"])

    def blocks(self, problem: Problem, config: Config) -> int:
        return problem.workload.out_channels * prod(config.shares.blocks(problem.workload)) * config.parts

    def instructions(self, problem: Problem, config: Config) -> int:
        return config.sums * config.rows * (VECTOR if config.images else 1)

    def rules(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def taps_in_kernel(config: Config) -> bool:
            return config.block_r <= workload.kernel[0] and config.block_s <= workload.kernel[1]

        def tiles_in_planes(config: Config) -> bool:
            return config.rows <= workload.output_size[0]

        def undilated_rows(config: Config) -> bool:
            return config.images > 0 or config.rows == 1 or workload.dilation[0] == 1

        def a_tile_for_a_thread(config: Config) -> bool:
            return config.images * prod(config.planes.tiles(workload)) <= config.threads

        def whole_turns(config: Config) -> bool:
            return config.parts == _in_turns(config.parts)

        return named(taps_in_kernel, tiles_in_planes, undilated_rows, a_tile_for_a_thread, whole_turns)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        """Yield the default: planes in shared memory for many taps, where some share a block; else tiles of x."""
        gpu = gpu_of(target)
        yield _of_planes(problem, gpu) or _of_tiles(problem, gpu)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        block_r, block_s = ({ceil_div(size, blocks) for blocks in (1, 2, 3, 4, size)} for size in workload.kernel)
        most = max(1, ceil_div(workload.batch * prod(workload.output_size), WARP))
        parts = {*(1 << number for number in range(10)), default.parts, 2 * default.parts}
        knobs = {
            "block_r": tuple(block_r),
            "block_s": tuple(block_s),
            "rows": tuple(range(1, min(workload.output_size[0], 8) + 1)),
            "images": (0, *upto(workload.batch, 1, 2, 4, 8)),
            "warps": (1, 2, 3, 4, 6, 8, 12, 16),
            "parts": tuple(_in_turns(count) for count in parts if count <= most),
        }
        return with_default(knobs, default)

    def heuristics(self, problem: Problem) -> Tests[Config]:
        workload = problem.workload

        def many_sums(config: Config) -> bool:
            rows, columns = config.shares.blocks(workload)
            return config.sums <= SUMS and rows * columns <= 2 * ceil_div(prod(workload.kernel), SUMS)

        def little_waste(config: Config) -> bool:
            return wasted(workload.output_size[0], config.rows) <= 1.3

        def work_for_all(config: Config) -> bool:
            if config.images:
                return config.parts <= max(1, ceil_div(workload.batch, config.images))
            tiles = workload.batch * ceil_div(workload.output_size[0], config.rows) * workload.output_size[1]
            return config.parts * config.warps <= max(1, ceil_div(tiles, WARP))

        return named(many_sums, little_waste, work_for_all)

    def estimate(self, problem: Problem, config: Config, target: tvm.target.Target) -> float:
        """Return the clocks that the kernels should take."""
        workload, gpu = problem.workload, gpu_of(target)
        products = prod(workload.output_shape) * prod(workload.kernel) / WARP / gpu.multiprocessors
        kernels = KERNEL + (FURTHER_KERNEL if config.parts > 1 else 0)
        units = products * _product_clocks(workload, config)
        return mostly_largest(units, workload.bytes_moved / gpu.bytes_per_clock) + WAIT + kernels

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, converted = problem.workload, problem.workload.itemsize < SUM_BYTES
        if config.images:
            turns = ceil_div(workload.batch, config.images * config.parts)
            read = prod(config.planes.window(workload)) + config.rows * VECTOR
            of_tile = VECTOR * config.sums * config.rows + SHARED_LOADING * read
            elements = float(config.images * sum(map(prod, config.planes.planes(workload))))
            loads = elements / config.threads
            of_tile += loads * (COPYING + converted)
            accessed, in_flight = read + loads, CACHED_IN_FLIGHT
        else:
            height, width = workload.output_size
            tiles = workload.batch * ceil_div(height, config.rows) * width
            turns = ceil_div(tiles, config.threads * config.parts)
            read = prod(config.tiles.window(workload))
            loads = float(config.rows + read)
            of_tile = config.sums * config.rows + loads * (LOADING + converted)
            elements = config.threads * (config.rows + read / config.block_s)
            accessed, in_flight = loads, IN_FLIGHT
        warps = config.threads // WARP
        issued = turns * of_tile + config.sums * ADDING + BEGINNING
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=turns * elements * workload.itemsize,
            accessed=warps * turns * accessed,
            arrivals=1 + turns * (1 + loads / in_flight),
            serial=issued,
            kernels=1 + (config.parts > 1),
            beside=parts_bytes(workload, config.parts),
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        return {
            "sums": config.sums,
            "reads": _read_registers(workload, config),
            "shared_bytes": self.shared_bytes(problem, config),
            "waste_y": wasted(workload.output_size[0], config.rows),
            "waste_taps": prod(map(wasted, workload.kernel, (config.block_r, config.block_s))),
            "taps": prod(workload.kernel),
            "plane": prod(workload.output_size),
            "channels": workload.out_channels,
            "batch": workload.batch,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "several rows, planes in shared memory": replace(config, rows=1, images=0),
            "several warps": replace(config, rows=1, images=0, warps=1),
            "several parts": replace(config, parts=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        if config.images:
            return _in_planes(problem, config.planes)
        return _in_tiles(problem, config.tiles)


def _read_registers(workload: ConvWorkload, config: Config) -> int:
    """Return the registers of a thread's tile of dy, and of what it reads of x at once."""
    if config.images:
        return config.rows * VECTOR + 2 * config.planes.window(workload)[1]
    return config.rows + prod(config.tiles.window(workload))


def _product_clocks(workload: ConvWorkload, config: Config) -> float:
    """Return the clocks of a product of a warp."""
    if config.sums <= FEW_SUMS:
        return OF_FEW
    if workload.dtype != "float32":
        return OF_PLANES if config.images else OF_TILES
    if not config.images:
        return OF_FLOAT32_TILES
    return OF_ONE_OR_TWO if config.images <= 2 else OF_FLOAT32_PLANES


def _in_tiles(problem: Problem, tiles: Tiles) -> Schedule:
    """Schedule the gradient from windows in registers."""
    # Step 0. The computation, in parts of a block
    sch = Schedule(te.create_prim_func(compute.weight_gradient_in_tiles(compute.with_open_sizes(problem), tiles, WARP)))
    names = ("window", "wide_x", "near_x", "grad", "wide_dy", "near_dy")
    of_x, of_dy = (tuple(map(sch.get_sblock, some)) for some in (names[:3], names[3:]))
    _into_blocks(sch, tiles.shares)

    # Step 2. Each thread sums its tiles in registers, turn by turn
    sums = sch.get_sblock("sums")
    lane, r, s, turn, row = sch.get_loops(sums)[-5:]
    sch.reorder(lane, turn, row, r, s)
    sch.bind(lane, "threadIdx.x")
    for stages, axes in ((of_x, 2), (of_dy, 1)):
        for stage in stages:
            sch.compute_at(stage, turn, preserve_unit_loops=True)
            _into_registers(sch, stage, axes)
    _unroll(sch, turn, row, r, s)

    _add_up(sch, problem, tiles.shares)
    return sch


def _in_planes(problem: Problem, tiles: PlaneTiles) -> Schedule:
    """Schedule the gradient from planes in shared memory."""
    # Step 0. The computation, in parts of a block
    workload = compute.with_open_sizes(problem)
    sch = Schedule(te.create_prim_func(compute.weight_gradient_in_planes(workload, tiles, WARP)))
    lines, given, window, grad = (sch.get_sblock(name) for name in ("lines", "given", "window", "grad"))
    _into_blocks(sch, tiles.shares)

    # Step 2. A block reads planes; each thread sums a tile of them in registers, row by row of its window
    sums = sch.get_sblock("sums")
    lane, r, s, turn, row, column = sch.get_loops(sums)[-6:]
    sch.reorder(lane, turn, row, column, r, s)
    sch.bind(lane, "threadIdx.x")
    for stage, place in ((window, row), (grad, turn)):
        sch.compute_at(stage, place, preserve_unit_loops=True)
        _into_registers(sch, stage, 2)
    for stage, offset in zip((lines, given), tiles.banks(workload), strict=True):
        sch.set_scope(stage, 0, "shared")
        sch.storage_align(stage, 0, -3, BANKS, offset)
        sch.compute_at(stage, turn, preserve_unit_loops=True, index=0)  # all reads are on their way together
        image, a, b = sch.get_loops(stage)[-3:]
        step, y, x = sch.split(sch.fuse(a, b), [None, tiles.shares.warps, WARP])
        sch.reorder(step, y, x, image)  # the place in a plane is worked out once for all images
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.unroll(step)
        sch.unroll(image)
    _unroll(sch, turn, row, column, r, s)

    _add_up(sch, problem, tiles.shares)
    return sch


def _into_blocks(sch: Schedule, shares: Shares) -> None:
    """Do step 1: a block has a part of a channel's tiles, for a block of taps, and its warps have sums of their own."""
    parts, warps, sums = (sch.get_sblock(name) for name in ("parts", "warps", "sums"))
    # A thread for each tap adds up what warps have, and stores it as the gradient if there is one part. What is moved
    # into loops is there before these are split: then its places have the conditions of the split, too.
    c, q, r, s, *part = sch.get_loops(sch.get_sblock("output")) if shares.parts == 1 else sch.get_loops(parts)[:-1]
    ro, r = sch.split(r, [None, shares.block_r])
    so, s = sch.split(s, [None, shares.block_s])
    sch.reorder(c, q, ro, so, *part, r, s)
    block = sch.fuse(c, q, ro, so, *part)
    sch.bind(block, "blockIdx.x")
    if shares.parts == 1:
        sch.compute_at(parts, s)
        sch.set_scope(parts, 0, "local")
    sch.compute_at(warps, block, preserve_unit_loops=True)
    sch.set_scope(warps, 0, "shared")
    _, y, x = sch.split(sch.fuse(r, s), [None, shares.warps, WARP])
    sch.bind(y, "threadIdx.y")
    sch.bind(x, "threadIdx.x")
    own = sch.get_loops(warps)[-4]
    sch.bind(own, "threadIdx.y")
    sch.compute_at(sums, own, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")


def _unroll(sch: Schedule, turn: LoopRV, *loops: LoopRV) -> None:
    """Unroll the loops of a turn's sums, and those that set them to zero."""
    for loop in loops:
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sch.get_sblock("sums"), turn))[-2:]:
        sch.unroll(loop)


def _add_up(sch: Schedule, problem: Problem, shares: Shares) -> None:
    """Do the last steps, which add up what threads have."""
    # Step 3. Each warp adds up the sums of its threads
    *_, r, s, lane = sch.get_loops(sch.get_sblock("warps"))
    sch.bind(lane, "threadIdx.x")
    taps = sch.fuse(r, s)
    sch.annotate(taps, "pragma_auto_unroll_max_step", shares.block_r * shares.block_s)
    sch.annotate(taps, "pragma_unroll_explicit", False)  # TVM cannot repeat a sum over threads; CUDA's compiler can
    # Step 4. A second kernel adds up what blocks have
    if shares.parts > 1:
        add_up_parts(sch, problem, shares.parts)


def add_up_parts(sch: Schedule, problem: Problem, parts: int) -> None:
    """Add up the parts of the gradient in a second kernel: a thread those of a tap, or a warp where there are many."""
    total = sch.get_sblock("total")
    adders = WARP if parts >= WARP else 1
    of_output = sch.get_loops(sch.get_sblock("output"))
    sch.compute_at(total, of_output[-1])
    sch.set_scope(total, 0, "local")
    together = BLOCK_THREADS if adders == 1 else divisors(prod(problem.workload.w_shape), BLOCK_THREADS // WARP)[-1]
    block, tap = sch.split(sch.fuse(*of_output), [None, together])
    sch.bind(block, "blockIdx.x")
    sch.bind(tap, "threadIdx.y")
    turn, adder = sch.split(sch.get_loops(total)[-1], [None, adders])
    if adders == 1:
        sch.unroll(turn)
    else:
        sch.bind(adder, "threadIdx.x")


def _into_registers(sch: Schedule, block: SBlockRV, axes: int) -> None:
    """Put a stage, whose last `axes` loops are unrolled, into registers."""
    sch.set_scope(block, 0, "local")
    for loop in sch.get_loops(block)[-axes:]:
        sch.unroll(loop)


def _of_tiles(problem: Problem, gpu: Gpu) -> Config:
    """Return the default with x in global memory: rows that share what is read, and parts that keep a GPU busy."""
    workload = problem.workload
    height, width = workload.output_size
    block_r, block_s = _sums(problem)

    def loads(rows: int) -> int:
        return rows + prod(Tiles(rows, Shares(block_r, block_s, 1, 1)).window(workload))

    def fits(rows: int) -> bool:
        return rows == 1 or (workload.dilation[0] == 1 and loads(rows) + block_r * block_s <= ROOM)

    heights = [rows for rows in range(1, min(height, 8) + 1) if fits(rows)]
    rows = min(heights, key=lambda rows: wasted(height, rows) * loads(rows) / rows)
    most = ceil_div(workload.batch * ceil_div(height, rows) * width, WARP)
    channels = workload.out_channels * ceil_div(workload.kernel[0], block_r) * ceil_div(workload.kernel[1], block_s)
    wanted = min(most, ceil_div(WARPS * gpu.multiprocessors, channels))
    few = BLOCK_THREADS // WARP
    whole = WHOLE if block_r * block_s <= FEW_SUMS else few
    if 4 * wanted <= 5 * whole:  # a second kernel takes longer than a few warps more would save
        all_busy = ceil_div(most, max(1, round(most / wanted)))  # in the last turn, too
        return Config(block_r, block_s, rows, 0, min(all_busy, whole), 1)
    return Config(block_r, block_s, rows, 0, few, _in_turns(ceil_div(wanted, few)))


def _of_planes(problem: Problem, gpu: Gpu) -> Config | None:
    """Return the default with planes in shared memory; None where planes are too large or too few, or few taps."""
    workload, (block_r, block_s) = problem.workload, _sums(problem)
    if block_r * block_s <= FEW_SUMS:
        return None

    def planes(rows: int) -> PlaneTiles:
        return Config(block_r, block_s, rows, 1, 1, 1).planes

    def cost(rows: int) -> float:
        return wasted(workload.output_size[0], rows) * prod(planes(rows).window(workload)) / rows

    def fits(rows: int) -> bool:
        return block_r * block_s + rows * VECTOR + 2 * planes(rows).window(workload)[1] <= PLANES_ROOM

    heights = [rows for rows in range(1, min(workload.output_size[0], 8) + 1) if fits(rows)]
    if not heights:
        return None
    rows = min(heights, key=cost)
    tiles, nbytes = prod(planes(rows).tiles(workload)), 4 * sum(map(prod, planes(rows).planes(workload)))

    def images(warps: int) -> int:
        return min(workload.batch, warps * WARP // tiles, PLANES_BYTES // nbytes)

    warps = max(range(1, PLANES_THREADS // WARP + 1), key=lambda warps: images(warps) * tiles / warps)
    if 2 * images(warps) * tiles < warps * WARP:
        return None
    blocks = workload.out_channels * prod(planes(rows).shares.blocks(workload))
    least = max(1, PLANES_WARPS * gpu.multiprocessors // (blocks * warps))
    most = ceil_div(workload.batch, images(warps))
    known = range(min(least, most), min(2 * least, most) + 1)
    parts = min(known, key=lambda parts: ceil_div(blocks * parts, gpu.multiprocessors) / parts)
    return Config(block_r, block_s, rows, images(warps), warps, _in_turns(parts))


def _sums(problem: Problem) -> tuple[int, int]:
    """Return the rows and columns of the kernel whose sums a thread has."""
    kr, ks = problem.workload.kernel
    block_s = evenly(ks, SUMS)
    return evenly(kr, max(1, SUMS // block_s)), block_s


def _in_turns(parts: int) -> int:
    """Return the number of parts, or fewer, in whole turns of the threads of a warp that add them up."""
    return parts // WARP * WARP if parts >= WARP else parts


template = WeightGradient()
