"""The knobs of Winograd's convolution on a CPU, and its work."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import gcd, prod

import msgspec
import tvm

from tvmconv.compute.dense.winograd import TAPS
from tvmconv.problem import Problem
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ...space import ceil_div, ceil_to, divisors, evenly, tile_sizes
from ..machine import PARALLEL_FLOPS
from ..model import Counts, Read, by_cache, operands, packed_weight, pieces, spilled, threads_of

INPUT_INSTRUCTIONS, OUTPUT_INSTRUCTIONS = {2: 64, 4: 216}, {2: 44, 4: 152}
"""The vector instructions that transform a tile of input, and a tile of sums, by the outputs of a tile: an addition or
a multiply-add for each term of the two products, and a load or a store for each element."""

MAX_VECTORS = 2
"""The most vectors of output channels that are worth a trial: with more of them some layers take twice as long."""

MAX_BAND_BYTES = 2**31 - 1
"""The most bytes of a band: TVM counts those of a task's arrays in 32 bits."""

MAX_ROW_TILES = 8
"""The most tiles of a row of open width that are computed as a whole; with more, small planes would waste much."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    outputs: int
    """The number of rows, and of columns, of outputs of a tile: 2 or 4."""
    rows: int
    """The number of rows of tiles of a band, which is transformed as a whole."""
    images: int
    """The number of images that a band has those rows of."""
    tiles: int
    """The number of tiles that are summed together."""
    vectors: int
    """The number of vectors of output channels that are summed together."""
    vector: int
    """The number of lanes of a vector."""
    shared: bool
    """True for threads that transform a band together, and share its output channels; else each has whole bands."""
    parallel: bool
    """True to spread the work over the threads of the machine."""

    @property
    def block(self) -> int:
        """The number of output channels that are summed together."""
        return self.vectors * self.vector

    @property
    def points(self) -> int:
        """The number of products of a tile, input channel and output channel."""
        return (self.outputs + TAPS - 1) ** 2


def tiles_of(workload: ConvWorkload, outputs: int) -> tuple[int, int]:
    """Return the rows and the columns of tiles of an image."""
    height, width = workload.output_size
    return ceil_div(height, outputs), ceil_div(width, outputs)


def tiles_of_band(workload: ConvWorkload, config: Config) -> int:
    """Return the number of tiles of a band."""
    return config.images * config.rows * tiles_of(workload, config.outputs)[1]


def tiles_across(problem: Problem, config: Config) -> int:
    """Return the tiles of a row that lie side by side in a band: all of them, or of an open width those of a step.

    Bands of an open width are whole numbers of them, and of the tiles that are summed together.
    """
    if "width" in problem.open_sizes:
        return config.tiles // gcd(config.tiles, config.images * config.rows)
    return tiles_of(problem.workload, config.outputs)[1]


def widened(problem: Problem, config: Config) -> ConvWorkload:
    """Return the workload with the columns that are computed of an open width.

    Whole steps compute half a step more than there is, in the mean of all widths.
    """
    if "width" not in problem.open_sizes:
        return problem.workload
    surplus = (tiles_across(problem, config) - 1) * config.outputs // 2
    return msgspec.structs.replace(problem.workload, width=problem.workload.width + surplus)


def bands_of(workload: ConvWorkload, config: Config) -> int:
    """Return the number of bands of all images."""
    return workload.batch // config.images * ceil_div(tiles_of(workload, config.outputs)[0], config.rows)


def band_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of the transformed input of a band."""
    depth = ceil_to(workload.in_channels, config.vector)
    return workload.sum_bytes * config.points * depth * tiles_of_band(workload, config)


def max_columns(workload: ConvWorkload, config: Config) -> int:
    """Return the most columns of an output whose bands have an input, and sums, of no more than `MAX_BAND_BYTES`."""
    channels = max(ceil_to(workload.in_channels, config.vector), config.block)
    column = workload.sum_bytes * config.points * channels * config.images * config.rows  # of tiles
    return MAX_BAND_BYTES // column * config.outputs


def weight_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of the transformed weight."""
    depth = ceil_to(workload.in_channels, config.vector)
    channels = ceil_to(workload.out_channels, config.block)
    return workload.sum_bytes * config.points * depth * channels


def counts(problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
    """Return the work of the kernel; threads share the blocks of channels of a shared band, or else the bands."""
    workload, cpu = widened(problem, config), cpu_of(target)
    in_vectors, blocks = ceil_div(workload.in_channels, config.vector), ceil_div(workload.out_channels, config.block)
    wide, registers = pieces(config.vector, cpu), config.vectors * ceil_div(config.vector, cpu.lanes)
    vectors, bands, tiles = config.vectors * wide, bands_of(workload, config), tiles_of_band(workload, config)
    steps = bands * blocks * config.points * ceil_div(tiles, config.tiles) * in_vectors * config.vector
    transformed = tiles * in_vectors * wide * INPUT_INSTRUCTIONS[config.outputs]
    transformed += tiles * blocks * vectors * OUTPUT_INSTRUCTIONS[config.outputs]
    results = bands * tiles * blocks * vectors * config.outputs**2
    copied = bands * (config.outputs * config.rows + TAPS - 1) * workload.padded_input[1] * config.images * in_vectors
    reads_blocks, stores_blocks = (channel_block(layout) > 1 for layout in (workload.layout, workload.out_layout))
    weight, taps = weight_bytes(workload, config), prod(workload.kernel)
    return Counts(
        tasks=tasks_of(workload, config) if config.parallel else 1,
        threads=threads_of(target, config.parallel),
        loops=((not problem.constant_weight) + (2 * bands if config.shared else 1)) * config.parallel,
        multiplied=steps * vectors * config.tiles,
        loaded=steps * vectors,
        chained=steps,
        broadcast=steps * config.tiles,
        spilled=spilled(steps, registers * (config.tiles + 1) + 1, cpu),
        issued=bands * transformed,
        stored=results * stores_blocks,
        transposed=results * (not stores_blocks),
        copied=copied * wide * reads_blocks,
        moved=copied * config.vector * (not reads_blocks),
        packed=packed_weight(problem) * config.points / taps,
        **by_cache(
            cpu,
            *operands(problem, weight),
            Read(bands * blocks * band_bytes(workload, config), working_set(workload, config)),
            Read((bands - 1) * weight, weight),
        ),
    )


def candidates(problem: Problem, target: tvm.target.Target, lanes: int) -> Iterator[Config]:
    """Yield the configurations whose cost is worth a comparison: all that fill registers, in bands of few sizes."""
    workload, cpu = problem.workload, cpu_of(target)
    parallel = workload.flops >= PARALLEL_FLOPS
    registers = ceil_div(lanes, cpu.lanes)  # of a vector
    for outputs in INPUT_INSTRUCTIONS:
        rows, columns = tiles_of(workload, outputs)
        bands = [(1, height) for height in tile_sizes(rows)]
        bands += [(images, rows) for images in divisors(workload.batch, workload.batch) if images > 1]
        for images, height in bands:
            for vectors in range(1, min(MAX_VECTORS, ceil_div(workload.out_channels, lanes)) + 1):
                limit = max(1, (cpu.registers - 2) // (registers * vectors) - 1)
                if "width" in problem.open_sizes:
                    steps = {divisors(images * height * across, limit)[-1] for across in range(1, MAX_ROW_TILES + 1)}
                else:
                    count = images * height * columns
                    steps = {evenly(count, limit)}  # as few as serve for as many products
                for tiles, shared in product(sorted(steps), (False, True) if parallel else (False,)):
                    yield Config(outputs, height, images, tiles, vectors, lanes, shared, parallel)


def tasks_of(workload: ConvWorkload, config: Config) -> int:
    """Return the number of pieces that threads share out."""
    if config.shared:
        return ceil_div(workload.out_channels, config.block)
    return bands_of(workload, config)


def working_set(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of a band's transformed input, and of its sums for a block of output channels."""
    sums = workload.sum_bytes * config.points * tiles_of_band(workload, config) * config.block
    return band_bytes(workload, config) + sums


def outputs_computed(workload: ConvWorkload, config: Config) -> float:
    """Return the outputs that whole tiles and bands compute, as a multiple of those there are."""
    rows, columns = tiles_of(workload, config.outputs)
    return ceil_to(rows, config.rows) * columns * config.outputs**2 / prod(workload.output_size)
