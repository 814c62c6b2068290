"""The configurations that the default of convolutions on tensor cores is chosen from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import prod

import tvm

from tvmconv.compute.annotations import BARRIER_BYTES
from tvmconv.compute.tensor.chunks import ROW_BYTES
from tvmconv.problem import Problem
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import ceil_div, ceil_to, divisors
from ..machine import BLOCK_BYTES
from .constraints import MAX_COLUMNS
from .tiles import (
    MAX_STAGES,
    Config,
    ahead,
    block_chunks,
    blocks,
    copied_rows,
    may_have_channel_rows,
    tf32_products,
    tile_bytes,
)

LEAST_COLUMNS = 16
"""The number of output channels of the narrowest tile: two matrices of 8, which `mma` loads together."""


CANDIDATES = tuple(
    Config(block_m, block_n, warps_m, warps_n, num_stages=stages, wgmma=wgmma)
    for wgmma, stages, tiles in (
        (True, 4, ((256, 128, 2, 1), (192, 128, 3, 1), (128, 256, 2, 1), (128, 128, 2, 1), (128, 96, 2, 1))),
        (True, 4, ((128, 64, 2, 1), (128, 32, 2, 1))),
        (True, MAX_STAGES, ((64, 64, 1, 1), (64, 48, 1, 1), (64, 32, 1, 1), (64, 16, 1, 1), (128, 16, 2, 1))),
        (False, 4, ((32, 64, 1, 4), (32, 32, 2, 1), (32, 16, 1, 1))),
        (False, 3, ((128, 128, 2, 2), (128, 64, 2, 2), (64, 64, 2, 2), (128, 32, 4, 1), (16, 64, 1, 2))),
        (False, 3, ((64, 32, 2, 1), (64, 16, 2, 1), (64, 48, 2, 1))),
    )
    for block_m, block_n, warps_m, warps_n in tiles
) + tuple(
    Config(block_m, block_n, warps_m, 1, num_stages=MAX_STAGES, wgmma=True, teams=teams)
    for teams, tiles in (
        (1, ((192, 128, 3), (128, 128, 2), (256, 128, 2), (128, 256, 2), (256, 64, 2), (192, 64, 3), (128, 64, 2))),
        (2, ((128, 128, 1), (64, 128, 1), (128, 64, 1), (64, 64, 1), (64, 96, 1), (128, 32, 1))),
    )
    for block_m, block_n, warps_m in tiles
)
"""The tiles that a default is chosen from."""

CHANNEL_ROWS = tuple(
    Config(16, block_n, 1, warps_n, num_stages=MAX_STAGES, wgmma=True, teams=1, channel_rows=True)
    for block_n, warps_n in ((64, 1), (128, 2), (192, 3), (256, 2))
)
"""Tiles with output channels as rows, with the numbers of pixels that `_even_pixels` returns. A second team made one
of eight layers 2% faster on an H100, and none of the others."""

LEAST_PIXELS = 72
"""The least pixels of tiles in `CHANNEL_ROWS`: with fewer, nearly all that is copied is the weight. On an H100 the
linear layers of 32 and 128 rows took 1.1 to 1.8 times as long by tiles of 16 to 64 rows as by those of other shapes."""

MAX_TURNS = 8
"""The most tiles of a multiprocessor for which pixels are divided evenly: with more, the last ones cost little."""

LARGE_TILES = (160, 192, 224, MAX_COLUMNS)
"""The pixels of tiles in `CHANNEL_ROWS` where even with the largest a multiprocessor has more than `MAX_TURNS`."""

LEAST_SPLIT_BLOCKS, MAX_SPLIT_BLOCKS = 0.5, 2
"""The blocks for each multiprocessor where blocks of a default share reductions: fewer leave most of the GPU idle, and
more have no further multiprocessor to go to."""

MAX_BLOCKS_TRIED = 4
"""The most blocks for each multiprocessor in a space of configurations where blocks share reductions."""

REDUCTION_SPLITS = ((1, False), (2, False), (4, False), (8, False), (2, True), (4, True), (8, True))
"""The values of `split_k` and `in_cluster` that a default is chosen from."""


def tiles_of(problem: Problem) -> list[Config]:
    """Return `CANDIDATES`, and these with other widths that cut the output channels of a group into whole tiles."""
    known = {each.block_n for each in CANDIDATES}
    whole = [size for size in divisors(problem.workload.multiplier, 256) if size % LEAST_COLUMNS == 0]
    columns = [size for size in whole if size not in known]
    divided = [replace(each, block_n=size) for each in CANDIDATES if each.warps_n == 1 for size in columns]
    return [*CANDIDATES, *divided]


def fitted(
    tiles: Iterable[Config],
    problem: Problem,
    target: tvm.target.Target,
    weight_is_x: bool,
    splits: Sequence[tuple[int, bool]],
) -> Iterator[Config]:
    """Yield tiles, also with reductions split over blocks where that suits the GPU; all with fitting stages."""
    gpu, residual, single = gpu_of(target), problem.workload.epilogue.residual, tf32_products(problem) == 1
    even = [] if problem.open_sizes or residual else even_tiles(problem, target, weight_is_x)
    if single and not residual:
        even += [replace(each, block_n=size) for each in CANDIDATES if each.teams == 1 for size in _equal(problem)]
    of_tiles = dict.fromkeys(tiles, splits) | dict.fromkeys(even, splits[:1])
    for tile, tile_splits in of_tiles.items():
        whole = blocks(problem.workload, tile)
        for split_k, in_cluster in tile_splits:
            if split_k == 1 or LEAST_SPLIT_BLOCKS < whole * split_k / gpu.multiprocessors <= MAX_SPLIT_BLOCKS:
                config = _fitting(tile, split_k, in_cluster, problem, gpu)
                yield config
                if single and tile.teams:
                    yield replace(config, rounds_input=True)


def few_blocks(problem: Problem, config: Config, gpu: Gpu) -> bool:
    """Return whether a multiprocessor has at most `MAX_BLOCKS_TRIED` blocks."""
    return blocks(problem.workload, config) <= MAX_BLOCKS_TRIED * gpu.multiprocessors


def _equal(problem: Problem) -> list[int]:
    """Return the columns of tiles that cut the output channels of a group into equal parts, rounded up to eights.

    So 1000 channels of 4096 pixels are 132 tiles of 192x168, one for each multiprocessor of an H100. Sums that go to
    the output from registers, or along planes, need no whole lines of channels.
    """
    channels = problem.workload.multiplier
    return [8 * ceil_div(channels, 8 * count) for count in range(ceil_div(channels, 256), ceil_div(channels, 64))]


def even_tiles(problem: Problem, target: tvm.target.Target, weight_is_x: bool) -> list[Config]:
    """Return `CHANNEL_ROWS` with numbers of pixels of `_even_pixels`; none where the problem cannot have such tiles."""
    if weight_is_x or "wgmma" not in tensor_instructions(target) or not may_have_channel_rows(problem):
        return []
    multiprocessors = gpu_of(target).multiprocessors
    return [
        replace(each, block_m=size) for each in CHANNEL_ROWS for size in _even_pixels(problem, each, multiprocessors)
    ]


def _even_pixels(problem: Problem, config: Config, multiprocessors: int) -> list[int]:
    """Return the pixels of tiles that are divided nearly evenly among the multiprocessors, or `LARGE_TILES`.

    So 51200 pixels of 256 channels are 512 tiles of 200x128, four for all but a few multiprocessors of an H100, where
    some of them have a fifth one of 534 tiles of 192x128. Pixels are in sixteens, too, so that threads store whole
    vectors.
    """
    workload = problem.workload
    pixels = workload.batch * prod(workload.output_size)
    of_channels = workload.groups * ceil_div(workload.multiplier, config.block_n)
    counts = [turns * multiprocessors // of_channels for turns in range(1, MAX_TURNS + 1)]
    if pixels > counts[-1] * MAX_COLUMNS:
        return list(LARGE_TILES)
    sizes = {ceil_to(ceil_div(pixels, count), step) for count in counts if count for step in (8, 16)}
    return sorted(size for size in sizes if LEAST_PIXELS <= size <= MAX_COLUMNS)


def _fitting(tile: Config, split_k: int, in_cluster: bool, problem: Problem, gpu: Gpu) -> Config:
    """Return a tile with some parts of its reduction, and no more stages than there are chunks to fill them.

    Where warps have roles a block computes many tiles: it has all stages that shared memory has room for.
    """
    config = tile if split_k == 1 else replace(tile, split_k=split_k, in_cluster=in_cluster)
    if config.teams:
        room = gpu.shared_bytes - BLOCK_BYTES - BARRIER_BYTES - config.teams * tile_bytes(problem, config)
        stages = min(config.num_stages, room // (sum(copied_rows(problem, config)) * ROW_BYTES))
    else:
        used = config.num_stages - ahead(problem, config)
        stages = max(used + 1, min(config.num_stages, block_chunks(problem.workload, config) + used))
    return config if stages == config.num_stages else replace(config, num_stages=stages)
