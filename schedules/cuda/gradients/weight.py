"""The gradient of a depthwise convolution by its weight on CUDA.

A block takes all pixels of a channel, or a part of them, and a thread has the sums of some taps in registers. Each warp
adds up those of its threads, and the block those of its warps; where there are several parts, a second kernel adds them
up. All orders depend on shapes alone. A thread reads windows of x from global memory; for many taps of small planes,
which it would read too often, a block has planes of some images in shared memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
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
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, ceil_to, divisors, evenly, named, upto, wasted, with_default
from ...template import Layouts
from ..machine import SUM_BYTES
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests
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
"""The most sums that a thread has in registers, one for each tap."""

ROOM, PLANES_ROOM = 150, 100
"""The most registers for a thread's sums, tile and what it reads at once: of x in global memory, and of planes."""

MAX_ROWS, MAX_ROW_WASTE = 8, 1.3
"""The most rows of a tile, and the most by which rows of tiles exceed those of a plane, as a factor."""

WARPS, IMAGES = (1, 2, 4, 8, 16), (1, 2, 4, 8)
"""The warps of blocks that read x from global memory, and the images of those that have planes in shared memory."""

PLANES_WARPS = 8
"""The most warps of a block that has planes in shared memory."""

GRIDS = (16, 32, 64)
"""The warps of all blocks, for each multiprocessor, that parts are chosen for."""

SHARED_LOADING, COPYING, ADDING = 1.5, 12.0, 25.0
"""The instructions of a thread for an element that it reads from shared memory, for one that it copies there, and for
each sum that the warps and threads of a block add up, counted in machine code for sm_90."""

BARRIERS = 2
"""The times that the threads of a block wait for one another in a turn: for planes to be read, and copied."""


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

    MAX_UNROLLED = 2048
    """The most multiply-adds of a thread that follow each other without a loop."""

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        return obstacle(problem)

    def registers(self, problem: Problem, config: Config) -> int:
        """Return the registers of a thread: compilers load about half of the elements that it reads ahead."""
        return config.sums + _read_registers(problem.workload, config) // 2 + OTHER_REGISTERS

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        """Return the bytes of the sums of warps, and of planes, each of which begins at its banks."""
        workload, planes = problem.workload, 0
        if config.images:
            banks = config.planes.banks(workload)
            for plane, first in zip(map(prod, config.planes.planes(workload)), banks, strict=True):
                planes += plane + (first - plane) % BANKS
        return 4 * (config.images * planes + config.warps * config.sums)

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
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
        """Yield tiles of x, and planes in shared memory, with parts that give multiprocessors few or many warps."""
        workload, multiprocessors = problem.workload, gpu_of(target).multiprocessors
        (height, width), batch = workload.output_size, workload.batch
        for (block_r, block_s), rows in product(_cuts(workload), range(1, min(height, MAX_ROWS) + 1)):
            if wasted(height, rows) > MAX_ROW_WASTE:
                continue
            one = Config(block_r, block_s, rows, images=0, warps=1, parts=1)
            planes, sizes = replace(one, images=1), []
            if one.sums + _read_registers(workload, one) <= ROOM:
                tiles = batch * ceil_div(height, rows) * width
                sizes += [(0, warps, ceil_div(tiles, warps * WARP)) for warps in WARPS]
            if one.sums + _read_registers(workload, planes) <= PLANES_ROOM:
                threads = [(images, images * prod(planes.planes.tiles(workload))) for images in upto(batch, *IMAGES)]
                sizes += [
                    (images, ceil_div(count, WARP), ceil_div(batch, images))
                    for images, count in threads
                    if count <= PLANES_WARPS * WARP and 2 * count >= ceil_to(count, WARP)
                ]
            blocks = workload.out_channels * prod(one.shares.blocks(workload))
            for images, warps, limit in sizes:
                counts = (grid * multiprocessors // (blocks * warps) for grid in GRIDS)
                for parts in sorted({_in_turns(min(limit, max(1, count))) for count in counts}):
                    yield replace(one, images=images, warps=warps, parts=parts)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        block_r, block_s = ({ceil_div(size, blocks) for blocks in (1, 2, 3, 4, size)} for size in workload.kernel)
        limit = max(1, ceil_div(workload.batch * prod(workload.output_size), WARP))
        parts = {*(1 << number for number in range(10)), default.parts, 2 * default.parts}
        knobs = {
            "block_r": tuple(block_r),
            "block_s": tuple(block_s),
            "rows": tuple(range(1, min(workload.output_size[0], 8) + 1)),
            "images": (0, *upto(workload.batch, 1, 2, 4, 8)),
            "warps": (1, 2, 3, 4, 6, 8, 12, 16),
            "parts": tuple(_in_turns(count) for count in parts if count <= limit),
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

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, converted = problem.workload, problem.workload.itemsize < SUM_BYTES
        if config.images:
            turns = ceil_div(workload.batch, config.images * config.parts)
            read = prod(config.planes.window(workload)) + config.rows * VECTOR
            of_tile = VECTOR * config.sums * config.rows + SHARED_LOADING * read
            elements = float(config.images * sum(map(prod, config.planes.planes(workload))))
            loads = elements / config.threads
            of_tile += loads * (COPYING + converted)
            accessed, waits = read + loads, 1 + BARRIERS + loads / CACHED_IN_FLIGHT
        else:
            height, width = workload.output_size
            tiles = workload.batch * ceil_div(height, config.rows) * width
            turns = ceil_div(tiles, config.threads * config.parts)
            read = prod(config.tiles.window(workload))
            loads = float(config.rows + read)
            of_tile = config.sums * config.rows + loads * (LOADING + converted)
            elements = config.threads * (config.rows + read / config.block_s)
            accessed, waits = loads, 1 + loads / IN_FLIGHT
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
            arrivals=1 + turns * waits,
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
    for stage, loop in ((window, row), (grad, turn)):
        sch.compute_at(stage, loop, preserve_unit_loops=True)
        _into_registers(sch, stage, 2)
    for stage, offset in zip((lines, given), tiles.banks(workload), strict=True):
        sch.set_scope(stage, 0, "shared")
        sch.storage_align(stage, 0, -3, BANKS, offset)
        sch.compute_at(stage, turn, preserve_unit_loops=True, index=0)  # all reads are in flight together
        image, a, b = sch.get_loops(stage)[-3:]
        step, y, x = sch.split(sch.fuse(a, b), [None, tiles.shares.warps, WARP])
        sch.reorder(step, y, x, image)  # the offset in a plane is computed once for all images
        sch.bind(y, "threadIdx.y")
        sch.bind(x, "threadIdx.x")
        sch.unroll(step)
        sch.unroll(image)
    _unroll(sch, turn, row, column, r, s)

    _add_up(sch, problem, tiles.shares)
    return sch


def _into_blocks(sch: Schedule, shares: Shares) -> None:
    """Do step 1: a block has a part of a channel's tiles, for a block of taps, and each warp has separate sums."""
    parts, warps, sums = (sch.get_sblock(name) for name in ("parts", "warps", "sums"))
    # For each tap a thread adds up the sums of warps, and stores the gradient if there is one part. Stages are moved
    # into loops before these are split: then their indices have the conditions of the split, too.
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
    warp_loop = sch.get_loops(warps)[-4]
    sch.bind(warp_loop, "threadIdx.y")
    sch.compute_at(sums, warp_loop, preserve_unit_loops=True)
    sch.set_scope(sums, 0, "local")


def _unroll(sch: Schedule, turn: LoopRV, *loops: LoopRV) -> None:
    """Unroll the loops of a turn's sums, and those that set them to zero."""
    for loop in loops:
        sch.unroll(loop)
    for loop in sch.get_loops(sch.decompose_reduction(sch.get_sblock("sums"), turn))[-2:]:
        sch.unroll(loop)


def _add_up(sch: Schedule, problem: Problem, shares: Shares) -> None:
    """Do the last steps, which add up the sums of threads."""
    # Step 3. Each warp adds up the sums of its threads
    *_, r, s, lane = sch.get_loops(sch.get_sblock("warps"))
    sch.bind(lane, "threadIdx.x")
    taps = sch.fuse(r, s)
    sch.annotate(taps, "pragma_auto_unroll_max_step", shares.block_r * shares.block_s)
    sch.annotate(taps, "pragma_unroll_explicit", False)  # TVM cannot repeat a sum over threads; CUDA's compiler can
    # Step 4. A second kernel adds up the parts of blocks
    if shares.parts > 1:
        add_up_parts(sch, problem, shares.parts)


def add_up_parts(sch: Schedule, problem: Problem, parts: int) -> None:
    """Add up the parts of the gradient in a second kernel: a thread for each tap, or a warp where there are many."""
    total = sch.get_sblock("total")
    adders = WARP if parts >= WARP else 1
    of_output = sch.get_loops(sch.get_sblock("output"))
    sch.compute_at(total, of_output[-1])
    sch.set_scope(total, 0, "local")
    adder_threads = (
        BLOCK_THREADS if adders == 1 else divisors(prod(problem.workload.w_shape), BLOCK_THREADS // WARP)[-1]
    )
    block, tap = sch.split(sch.fuse(*of_output), [None, adder_threads])
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


def _cuts(workload: ConvWorkload) -> list[tuple[int, int]]:
    """Return the rows and columns of the kernel whose sums a thread has: the most columns, or the most rows."""
    kr, ks = workload.kernel
    block_s, block_r = evenly(ks, SUMS), evenly(kr, SUMS)
    return [*{(evenly(kr, max(1, SUMS // block_s)), block_s), (block_r, evenly(ks, max(1, SUMS // block_r)))}]


def _in_turns(parts: int) -> int:
    """Return the number of parts, or fewer, in whole turns of the threads of a warp that add them up."""
    return parts // WARP * WARP if parts >= WARP else parts


template = WeightGradient()
