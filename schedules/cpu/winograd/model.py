"""The knobs of Winograd's convolution on a CPU, and a model of its time."""

from __future__ import annotations

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

from ...open_sizes import samples
from ...space import ceil_div, ceil_to, divisors, evenly, tile_sizes, wasted
from ..direct.tile_cost import FINISH_CYCLES, STORE_CYCLES, WEIGHT_CYCLES
from ..machine import PARALLEL_FLOPS

INPUT_CYCLES = {2: 45, 4: 130}
"""The cycles to transform a tile of input in a vector of channels, by the outputs of a tile."""

OUTPUT_CYCLES = {2: 25, 4: 80}
"""The same for a tile of sums."""

GATHER_CYCLES = 1.0
"""The cycles to copy an element of an input in NCHW to where its channels lie side by side."""

STREAM_BYTES, REREAD_BYTES, MEMORY_BYTES = 50, 24, 5
"""The bytes that a core reads in a cycle: of weights one after the other from the last cache, of a band from there, and
of weights from memory. Fitted with `LAUNCH_CYCLES` to 163 configurations of 15 layers on two cores of Zen 5."""

LAUNCH_CYCLES = 12_800
"""The cycles of each thread until all have begun a loop that they share, and until all have ended it."""

KEPT_SHARE = 0.125
"""The share of the last cache that a layer's weight may take to be there still when it is called again."""

STREAMED_SHARE = 2
"""The multiple of what networks can count on of the last cache that a layer's weight may take to be there still for the
next band: of 32 MB on Zen 5 a weight of 19 MB was, one of 38 MB was not."""

MOST_VECTORS = 2
"""The most vectors of output channels that are worth a trial: with more of them some layers take twice as long."""

MOST_BAND_BYTES = 2**31 - 1
"""The most bytes of a band: TVM counts those of a task's arrays in 32 bits."""

MOST_ACROSS = 8
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
    """True for threads that transform a band together, and share its output channels; else each has its own bands."""
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


def computed(problem: Problem, config: Config) -> tuple[ConvWorkload, ...]:
    """Return the workloads by which a configuration is chosen, with the columns that it computes of an open width.

    Whole steps compute half a step more than there is, in the mean of all widths.
    """
    workloads = samples(problem)
    if "width" not in problem.open_sizes:
        return workloads
    surplus = (tiles_across(problem, config) - 1) * config.outputs // 2
    return tuple(msgspec.structs.replace(each, width=each.width + surplus) for each in workloads)


def bands_of(workload: ConvWorkload, config: Config) -> int:
    """Return the number of bands of all images."""
    return workload.batch // config.images * ceil_div(tiles_of(workload, config.outputs)[0], config.rows)


def band_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of the transformed input of a band."""
    depth = ceil_to(workload.in_channels, config.vector)
    return workload.sum_bytes * config.points * depth * tiles_of_band(workload, config)


def most_columns(workload: ConvWorkload, config: Config) -> int:
    """Return the most columns of an output whose bands have an input, and sums, of no more than `MOST_BAND_BYTES`."""
    channels = max(ceil_to(workload.in_channels, config.vector), config.block)
    column = workload.sum_bytes * config.points * channels * config.images * config.rows  # of tiles
    return MOST_BAND_BYTES // column * config.outputs


def weight_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of the transformed weight."""
    depth = ceil_to(workload.in_channels, config.vector)
    channels = ceil_to(workload.out_channels, config.block)
    return workload.sum_bytes * config.points * depth * channels


def cost(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> float:
    """Return the cycles that an image takes on all cores together, by their units for multiply-adds and their caches.

    Threads that share a band read the weight once for it; those that have bands of their own read it once each, and
    some wait in the end. A large weight is read from memory each time: what it has more than the one that is not
    transformed is counted.
    """
    cpu = cpu_of(target)
    threads = int(target.attrs.get("num-cores", 1)) if config.parallel else 1
    in_vectors = ceil_div(workload.in_channels, config.vector)
    blocks = ceil_div(workload.out_channels, config.block)
    count = tiles_of_band(workload, config)
    steps = config.points * ceil_div(count, config.tiles) * blocks * in_vectors * config.vector
    tile = config.vectors * config.tiles
    step = max(max(tile, config.vectors + config.tiles) / cpu.fma_units, cpu.fma_latency)
    step += WEIGHT_CYCLES * config.vectors + cpu.broadcast_cycles * config.tiles
    inputs = count * in_vectors * INPUT_CYCLES[config.outputs]
    outputs = count * blocks * config.vectors * OUTPUT_CYCLES[config.outputs]
    area = (config.outputs * config.outputs) * count * blocks * config.vectors
    finish = STORE_CYCLES * area if channel_block(workload.out_layout) > 1 else FINISH_CYCLES * config.vector * area
    read = (config.outputs * config.rows + TAPS - 1) * workload.padded_input[1] * config.images
    copy = read * in_vectors * (1 if channel_block(workload.layout) > 1 else GATHER_CYCLES * config.vector)
    reread = blocks * band_bytes(workload, config) / REREAD_BYTES
    products = steps * step + (reread if working_set(workload, config) > cpu.l2_bytes else 0)
    bands, weight = bands_of(workload, config), weight_bytes(workload, config)
    if config.shared:
        passes = readings = bands  # the threads together read it once for a band
        products *= wasted(blocks, threads)
        launches = 2 * bands * threads * LAUNCH_CYCLES  # a loop for the input of a band, and one for its products
    else:
        passes, launches = ceil_div(bands, threads), 0
        readings = passes * threads
    cycles = readings * (products + inputs + outputs + finish + copy) + launches
    from_memory = 0
    if weight > KEPT_SHARE * cpu.l3_bytes:
        from_memory = passes if weight > STREAMED_SHARE * cpu.l3_bytes else 1
        cycles += (from_memory * weight - workload.sum_bytes * prod(workload.w_shape)) / MEMORY_BYTES
    cycles += (readings - from_memory) * weight / STREAM_BYTES
    return cycles / workload.batch


def candidates(problem: Problem, target: tvm.target.Target, lanes: int) -> list[Config]:
    """Return the configurations whose cost is worth a comparison: all that fill registers, in bands of few sizes."""
    workload, cpu = problem.workload, cpu_of(target)
    parallel = workload.flops >= PARALLEL_FLOPS
    wide = ceil_div(lanes, cpu.lanes)  # registers of a vector
    found = []
    for outputs in INPUT_CYCLES:
        rows, columns = tiles_of(workload, outputs)
        bands = [(1, height) for height in tile_sizes(rows)]
        bands += [(images, rows) for images in divisors(workload.batch, workload.batch) if images > 1]
        for images, height in bands:
            for vectors in range(1, min(MOST_VECTORS, ceil_div(workload.out_channels, lanes)) + 1):
                most = max(1, (cpu.registers - 2) // (wide * vectors) - 1)
                if "width" in problem.open_sizes:
                    steps = {divisors(images * height * across, most)[-1] for across in range(1, MOST_ACROSS + 1)}
                else:
                    count = images * height * columns
                    steps = {evenly(count, most)}  # as few as serve for as many products
                for tiles, shared in product(sorted(steps), (False, True) if parallel else (False,)):
                    found.append(Config(outputs, height, images, tiles, vectors, lanes, shared, parallel))
    return found


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
