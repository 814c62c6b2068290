"""The knobs of convolutions on tensor cores, and the registers and the shared memory that their tiles take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, log, prod

from tvmconv.compute.annotations import BARRIER_BYTES, COPYING_THREADS, TILE_ROWS
from tvmconv.compute.tensor.chunks import COPY_BYTES, ROW_BYTES, chunks
from tvmconv.compute.tensor.fragments import GATHERED, FragmentTile
from tvmconv.compute.tensor.gemm import finishes_early
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import STORAGE_TYPES, StorageType
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP

from ...space import ceil_div, ceil_to, divisors
from ..gemm.tiles import VECTOR

WARPGROUP = 4
"""The number of warps that work on one `wgmma`."""

MAX_STAGES = 8
"""The most chunks in shared memory: `lowering.gpu.intrinsics` waits one by one for six in flight, beside two in use."""

ROLE_REGISTERS = {1: (40, 232), 2: (40, 232), 3: (32, 160)}
"""The registers of a thread that copies and of one that multiplies, by the number of groups of four warps that
multiply."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `block_m` pixels times `block_n` output channels in its threads' registers."""

    block_m: int
    """The number of pixels of a block."""
    block_n: int
    """The number of output channels of a block."""
    warps_m: int
    """The number of warps along the pixels, or with `wgmma` of groups of four warps."""
    warps_n: int
    """The number of warps, or of groups of four warps, along the output channels."""
    num_stages: int
    """The number of chunks of the reduction in shared memory: one or two are used while the others are being copied."""
    split_k: int = 1
    """The number of parts of the reduction that blocks share."""
    wgmma: bool = False
    """True for the instructions of groups of four warps, which read factors from shared memory themselves."""
    min_blocks_per_sm: int = 1
    """The number of blocks that a multiprocessor has to have room for, which limits the registers."""
    in_cluster: bool = False
    """True if the blocks that share a reduction read each other's sums, instead of a second kernel."""
    teams: int = 0
    """The number of teams of warps that multiply a tile each, while four more warps copy and blocks stay on a
    multiprocessor; 0 where all warps of a block copy and multiply one tile."""
    rounds_input: bool = False
    """True if a separate kernel rounds the input to TF32 numbers first, and `wgmma` reads both factors from shared
    memory; else each block rounds what it multiplies."""
    channel_rows: bool = False
    """True if the rows of `wgmma`'s product are output channels and its columns pixels: columns may be any multiple of
    8, so that pixels can be divided evenly over the GPU, where rows are multiples of 64."""

    @property
    def width(self) -> int:
        """The number of warps that work on one instruction."""
        return WARPGROUP if self.wgmma else 1

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * self.width * WARP

    @property
    def kernels(self) -> int:
        """The number of kernels that multiply and add up: a second one adds up the parts."""
        return 1 if self.split_k == 1 or self.in_cluster else 2

    @property
    def tile(self) -> FragmentTile:
        """The tile in terms of fragments."""
        if self.channel_rows:
            return _tile(self.block_n, self.block_m, self.warps_n, self.warps_m, self.width, True)
        return _tile(self.block_m, self.block_n, self.warps_m, self.warps_n, self.width, False)

    @property
    def sums(self) -> int:
        """The number of sums of a thread."""
        return self.block_m * self.block_n // self.threads


@lru_cache(maxsize=1024)  # constraints and counts ask for that of a configuration ten times
def _tile(rows: int, columns: int, warps_m: int, warps_n: int, width: int, channel_rows: bool) -> FragmentTile:
    instructions, eights = rows // (warps_m * width * 16), columns // (warps_n * 8)
    return FragmentTile(warps_m, warps_n, width, instructions, eights, channel_rows)


def tf32_products(problem: Problem) -> int:
    """Return the number of products of TF32 numbers for one product of float32 numbers; 0 for other types."""
    if problem.workload.dtype != "float32":
        return 0
    return 1 if problem.precision == "tf32" else 3


def converted_products(problem: Problem, config: Config) -> int:
    """Return the number of products of TF32 numbers that are made of factors in registers; 0 where none is."""
    return 0 if config.rounds_input else tf32_products(problem)


def weight_split(problem: Problem, config: Config) -> int:
    """Return the number of TF32 numbers that a weight is split into ahead, for `wgmma`; 0 for `mma`."""
    return {0: 0, 1: 1, 3: 2}[tf32_products(problem)] if config.wgmma else 0


def may_have_channel_rows(problem: Problem) -> bool:
    """Return whether output channels may be the rows of a product: where they are stored side by side.

    Both factors have to be of one type, as instructions tell the first one's from the second one's, and numbers of
    float32 have to be rounded before, for a single product.
    """
    workload = problem.workload
    return workload.storage.weight == workload.dtype and tf32_products(problem) < 3 and not stores_planes(problem)


def is_asynchronous(problem: Problem, config: Config) -> bool:
    """Return whether a product is asynchronous: it continues while a block waits for the next chunk.

    It does with both factors in shared memory, and, if warps have roles, with one in registers, where it is rounded.
    Three products have separate sums, which are added to the others right afterwards.
    """
    products = converted_products(problem, config)
    return config.wgmma and (products == 0 or (products == 1 and config.teams > 0))


def ahead(problem: Problem, config: Config) -> int:
    """Return the number of chunks that are copied ahead: those of the stages that no product uses."""
    return config.num_stages - (2 if is_asynchronous(problem, config) else 1)


def role_registers(config: Config) -> tuple[int, int]:
    """Return the registers of a thread that copies and of one that multiplies, where warps have roles."""
    return ROLE_REGISTERS[config.teams * config.threads // COPYING_THREADS]


def block_chunks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of chunks that a block goes through."""
    return ceil_div(chunks(workload, config.teams > 0), config.split_k)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the blocks of the grid, without those that add up the parts."""
    rows = ceil_div(workload.batch * prod(workload.output_size), config.block_m)
    return config.split_k * rows * workload.groups * ceil_div(workload.multiplier, config.block_n)


def passes(problem: Problem, config: Config, multiprocessors: int) -> int:
    """Return how many times blocks go through all pixels, each time with an equal share of the channels' tiles.

    Blocks that run at the same time read the least of memory where their tiles have as many pixels as channels. It is
    once with open sizes, and with groups, each of which reads different pixels.
    """
    workload = problem.workload
    if problem.open_sizes or workload.groups > 1:
        return 1
    tiles = ceil_div(workload.out_channels, config.block_n)
    square = (multiprocessors * config.block_m / config.block_n) ** 0.5
    return min(divisors(tiles, tiles), key=lambda count: abs(log(tiles / count / square)))


def fragments(problem: Problem, config: Config) -> int:
    """Return the registers of a thread for factors on their way to the tensor cores, and for the sums of a chunk."""
    products, tile = converted_products(problem, config), config.tile
    if not config.wgmma:
        return (tile.tiles_m * 4 + tile.tiles_n * 2) * (2 if products == 3 else 1) + (
            config.sums if products == 3 else 0
        )
    one = 24 if is_asynchronous(problem, config) else 16  # half of the next factor beside the one in use
    return {0: 0, 1: one * tile.tiles_m, 3: 32 * tile.tiles_m + config.sums}[products]


def copied_rows(problem: Problem, config: Config) -> tuple[int, ...]:
    """Return the rows of a chunk of each factor; each TF32 number that a weight is split into is one."""
    return config.block_m, *[config.block_n] * max(1, weight_split(problem, config))


def shared_bytes(problem: Problem, config: Config) -> int:
    """Return the shared memory of a block in bytes: the chunks, whose memory the tile reuses afterwards.

    TVM gives the tile the memory of all chunks, or, if it has the type of the factors, that of the largest factor
    alone.
    """
    workload, tile = problem.workload, tile_bytes(problem, config)
    factors = [config.num_stages * count * ROW_BYTES for count in copied_rows(problem, config)]
    if config.teams:
        return BARRIER_BYTES + sum(factors) + config.teams * tile
    reused = max(factors) if tile_type(workload, config).name == workload.dtype else sum(factors)
    return sum(factors) + max(0, tile - reused)


def tile_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of a tile in shared memory, which is 0 where threads store their sums as they are."""
    if stores_registers(problem, config):
        return 0
    rows = ceil_to(config.block_m, TILE_ROWS) if config.teams else config.block_m
    return rows * tile_row_bytes(problem, config)


def tile_row_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes from a pixel to the next one of a tile in shared memory."""
    itemsize = tile_type(problem.workload, config).itemsize
    padding = (bank(problem, config) - config.block_n) % (BANK_BYTES // itemsize)
    return (config.block_n + padding) * itemsize


BANK_BYTES = 128
"""The bytes of a row of all banks of shared memory."""


def tile_type(workload: ConvWorkload, config: Config) -> StorageType:
    """Return the type of a tile in shared memory: that of the output where the epilogue comes before, or of sums."""
    early = finishes_early(workload, config.split_k)
    return workload.output_storage if early else STORAGE_TYPES[workload.storage.sums]


def stores_registers(problem: Problem, config: Config) -> bool:
    """Return whether threads store their sums as they are: pairs of four bytes, where shared memory is for chunks.

    Four threads have 32 bytes of a line, which is what memory takes, or 64 of gathered channels. With a residual they
    would need more registers than they have, for pairs of it and for addresses. TVM cannot store from registers where
    it subtracts the products of a zero point from sums of parts.
    """
    workload = problem.workload
    four_bytes = tile_type(workload, config).itemsize == stored_bytes(workload, config) == 4
    reads_others = workload.epilogue.residual if config.split_k == 1 else workload.zero_point
    return config.teams > 0 and four_bytes and not reads_others and not stores_planes(problem)


def tile_of(problem: Problem, config: Config) -> FragmentTile:
    """Return the tile, whose channels are gathered where weights are laid out anyhow and threads store their sums.

    Channels that are rows are not gathered: a thread would have two neighbours, which saved no time on an H100.
    """
    tile = config.tile
    whole = problem.workload.multiplier % GATHERED == 0 and not tile.channel_rows and tile.tiles_n % 2 == 0
    return replace(tile, gathered=whole and weight_split(problem, config) > 0 and stores_registers(problem, config))


def stores_matrices(workload: ConvWorkload, config: Config) -> bool:
    """Return whether warps transpose results of two bytes on their way to a tile, whose rows are pixels.

    The factors have the results' type: TVM may give the tile the memory of chunks, and functions get addresses of one
    type.
    """
    tile = tile_type(workload, config)
    return config.channel_rows and tile.itemsize == 2 and tile.name == workload.dtype


def stored_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes that a block stores for an output: those of the output, or of a sum of a part."""
    return workload.output_storage.itemsize if config.split_k == 1 else workload.sum_bytes


def store_vector(problem: Problem, config: Config) -> int:
    """Return the number of neighbouring elements, or sums of parts, that a thread stores at once: at most 16 bytes."""
    workload = problem.workload
    itemsize = stored_bytes(workload, config)
    vector_limit = VECTOR if workload.epilogue.residual else COPY_BYTES // itemsize

    def whole(size: int) -> bool:
        return not (workload.multiplier % size or config.block_n % size or config.sums % size)

    return max(size for size in (VECTOR, 2 * VECTOR, 4 * VECTOR) if size <= vector_limit and whole(size))


def store_lanes(problem: Problem, config: Config) -> int:
    """Return the number of threads that store neighbours in a row of the output: a whole row, unless warps have roles.

    Where a row is no power of two, a thread has another column each time. Threads of warps with roles would spill
    registers for that.
    """
    row = config.block_n // store_vector(problem, config)
    return gcd(WARP, row) if config.teams else row


def stores_planes(problem: Problem) -> bool:
    """Return whether a block stores its sums along the planes of an output in NCHW, pixel after pixel.

    Planes of a single pixel have their channels side by side in memory.
    """
    workload = problem.workload
    return workload.out_layout == "NCHW" and (problem.has_open_planes or prod(workload.output_size) > 1)


PLANE_LANES = 8
"""The lanes of a warp that store pixels side by side in one plane; the others store those of the next planes.

With `bank` two of them at most read the same bank of shared memory.
"""


def plane_vector(problem: Problem, config: Config) -> int:
    """Return the pixels that a lane stores at once in a plane of an output in NCHW."""
    plane = 1 if problem.has_open_planes else prod(problem.workload.output_size)
    return max(size for size in (1, 2, VECTOR) if plane % size == 0 and config.block_m % (size * PLANE_LANES) == 0)


def bank(problem: Problem, config: Config) -> int:
    """Return the bank, in elements, where the second row of a tile begins, such that the banks of a warp differ.

    A warp stores neighbouring pairs of eight rows, four in each, and reads vectors of 16 bytes or single elements.
    """
    itemsize = tile_type(problem.workload, config).itemsize
    if stores_planes(problem):
        return {4: 2, 2: 10, 1: 20}[itemsize]
    return max(COPY_BYTES, 8 * itemsize) // itemsize
