"""The work of convolutions on tensor cores, from which the model of a GPU computes clocks."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import NamedTuple

import tvm

from tvmconv.compute.tensor.chunks import (
    COPY_BYTES,
    ROW_BYTES,
    STEP_BYTES,
    STEPS,
    VECTORS,
    chunks_of_tap,
    depth,
    has_channels_last,
    image_elements,
    last_chunk_steps,
    lays_out_input,
    lays_out_weight,
    multiplied_share,
    packed_elements,
    read_image,
    reads_windows,
    row_bytes,
)
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div
from ..machine import LINE
from ..model import Counts, in_runs, memory_bytes
from .tiles import (
    Config,
    ahead,
    block_chunks,
    blocks,
    converted_products,
    copied_rows,
    store_vector,
    stored_bytes,
    stores_registers,
    tf32_products,
    tile_type,
    weight_split,
)

COPYING, STORING, SPLITTING = 8, 4, 3
"""The instructions of an asynchronous copy and of a store with their addresses, and those that split a float32 number
into two TF32 numbers."""

BARRIER, BEGINNING = 40, 100
"""The instructions that take as long as a barrier with the wait for a product, and those of a block before the first
copy."""

MEETINGS = 4
"""The number of waits of each block of a cluster: until all have begun, until all sums lie in shared memory, for what
blocks read of each other, and until all have read."""

ROLES = 3
"""The number of times that a block whose warps have roles waits before its first tile: for the description of tensors,
for the barriers, and for the first chunk."""

PAIR, ROOM = 2, 0.9
"""The blocks of a cluster that leaves no multiprocessor idle, and the share of multiprocessors that larger ones find
room on: a cluster has to fit into a group of multiprocessors, and the driver of an H100 has room for 66 clusters of two
blocks that fill a multiprocessor, for 30 of four and for 15 of eight."""


class Operands(NamedTuple):
    """Numbers that all configurations of a problem have in common."""

    steps: float
    """The mean number of steps of a chunk that have channels, where no chunk spans two taps."""
    cut: float
    """The share of chunks whose rows go on past the last channel, where the copy engine brings zeros."""
    one_tap: bool
    """True for a window of 1x1."""
    operations: int
    """The instructions of the epilogue for a sum, without its store."""
    image_bytes: float
    """The bytes that memory moves as the input is laid out; 0 where it is not."""
    rounding_bytes: float
    """The bytes that memory moves as the input is rounded and not laid out."""


@lru_cache(maxsize=64)
def operands_of(problem: Problem) -> Operands:
    workload = problem.workload
    last, image = last_chunk_steps(workload), image_elements(workload)
    epilogue, to_half = workload.epilogue, workload.output_storage.name in NARROW
    return Operands(
        STEPS * multiplied_share(workload),
        (row_bytes(last) > last * STEP_BYTES) / chunks_of_tap(workload),
        prod(workload.kernel) == 1,
        1 + epilogue.operations(to_half) + 2 * epilogue.residual,
        image_bytes(workload) if lays_out_input(workload) else 0.0,
        (prod(workload.x_shape) + image) * workload.itemsize,
    )


def image_bytes(workload: ConvWorkload) -> float:
    """Return the bytes that memory moves as the input is laid out: pixels, or windows, are written in runs."""
    whole = has_channels_last(workload) or reads_windows(workload)
    run = depth(read_image(workload)) * workload.itemsize if whole else COPY_BYTES
    return (prod(workload.x_shape) + image_elements(workload) * in_runs(run)) * workload.itemsize


def counts_of(problem: Problem, config: Config, target: tvm.target.Target, resident: int, weight_is_x: bool) -> Counts:
    """Return the work of the kernels. `weight_is_x` says that the weight takes the part of x, as in `cuda/linear`.

    The sums of a chunk's products stay in registers. A block whose warps have roles goes on with tile after tile, which
    are counted as blocks and share its first waits (`ROLES`). Without roles a block waits for each of its products.
    """
    workload, operands, gpu = problem.workload, operands_of(problem), gpu_of(target)
    chunks, sums, grid = block_chunks(workload, config), config.block_m * config.block_n, blocks(workload, config)
    steps = operands.steps if config.teams else STEPS
    stored = stored_bytes(workload, config) * sums
    brought, copies, arrivals = float(sum(copied_rows(problem, config))), 0.0, float(workload.epilogue.residual)
    if config.teams:
        brought += operands.cut * (brought if operands.one_tap else config.block_m)
        arrivals += ROLES / ceil_div(grid, gpu.multiprocessors * config.teams) + chunks / (config.num_stages - 1)
    else:
        copies = brought * VECTORS / config.threads
        arrivals += 1 + chunks / (1 + ahead(problem, config))
    instructions, read = _products(problem, config, steps)
    accessed = chunks * (read + copies * config.threads * COPY_BYTES)
    if not stores_registers(problem, config):
        accessed += 2 * tile_type(workload, config).itemsize * sums
    fetched = chunks * brought * ROW_BYTES + stored * (1 + workload.epilogue.residual)
    if config.in_cluster:
        fetched, accessed = fetched + workload.sum_bytes * sums, accessed + workload.sum_bytes * sums
        arrivals += MEETINGS * config.split_k
        grid = grid if config.split_k <= PAIR else int(grid / ROOM)
    half = tensor_instructions(target)["wgmma" if config.wgmma else "mma"].products
    multiplied = chunks * steps * sums * STEP_BYTES * max(1, tf32_products(problem)) / (2 * half)
    moved = memory_bytes(workload, target)
    waited = chunks * BARRIER + (0.0 if config.teams else multiplied)
    if config.teams == 1 and moved:  # the only team multiplies nothing while memory takes its results
        waited += stored * (1 + workload.epilogue.residual) * gpu.multiprocessors / gpu.bytes_per_clock
    issued = chunks * (instructions + copies * COPYING) + BEGINNING
    issued += config.sums * (operands.operations + STORING / store_vector(problem, config))
    kernels, beside = _other_kernels(problem, config, weight_is_x)
    return Counts(
        blocks=grid,
        resident=resident,
        warps=config.threads // WARP,
        issued=issued,
        moved=moved,
        fetched=fetched,
        accessed=accessed / LINE,
        multiplied=multiplied,
        arrivals=arrivals,
        serial=issued + waited,
        kernels=1 + kernels,
        beside=beside,
    )


def _products(problem: Problem, config: Config, steps: float) -> tuple[float, float]:
    """Return the instructions of a warp for the products of a chunk, and the bytes that all warps read for them.

    A warp reads the factors of `mma` into registers. Each `wgmma` reads its factors, except one that is rounded, or
    split, in registers.
    """
    tile, converted = config.tile, converted_products(problem, config)
    groups = config.warps_m * config.warps_n
    if config.wgmma:
        of_step, numbers = float(tile.tiles_m * (2 if converted else 1)), 4 * tile.tiles_m
        read = tile.tiles_m * (64 + 8 * tile.tiles_n * max(1, converted))
    else:
        of_step = tile.tiles_m * tile.tiles_n * max(1, converted) + tile.tiles_m + tile.tiles_n / 2
        numbers, read = 4 * tile.tiles_m + 2 * tile.tiles_n, 16 * tile.tiles_m + 8 * tile.tiles_n
    converting = {0: 0, 1: 1, 3: SPLITTING}[converted] * numbers
    return steps * (of_step + converting), steps * STEP_BYTES * groups * read


def _other_kernels(problem: Problem, config: Config, weight_is_x: bool) -> tuple[int, float]:
    """Return the number of kernels besides the main one, and the bytes that they move.

    They lay out operands first, except a constant weight, or add up the parts of sums.
    """
    workload, operands = problem.workload, operands_of(problem)
    kernels, moved = 0, 0.0
    if config.kernels > 1:
        outputs = prod(workload.output_shape)
        kernels, moved = 1, float(outputs * (config.split_k * workload.sum_bytes + workload.output_storage.itemsize))
    if weight_is_x or not problem.constant_weight:
        split = weight_split(problem, config)
        kernels += workload.zero_point != 0
        if lays_out_weight(workload, split):
            kernels += 1
            moved += (prod(workload.w_shape) + max(1, split) * packed_elements(workload)) * workload.itemsize
    lays_out = lays_out_input(workload)
    if (config.rounds_input or lays_out) and not (weight_is_x and problem.constant_weight):
        kernels, moved = kernels + 1, moved + (operands.image_bytes if lays_out else operands.rounding_bytes)
    return kernels, moved
