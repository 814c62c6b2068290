"""The model of convolutions on tensor cores, by which their default configurations are chosen."""

from __future__ import annotations

from math import gcd, prod

import tvm

from tvmconv.compute.tensor.chunks import (
    COPY_BYTES,
    ROW_BYTES,
    STEP_BYTES,
    STEPS,
    chunks_of_tap,
    image_elements,
    last_steps,
    lays_out_input,
    lays_out_weight,
    mean_row_bytes,
    multiplied_share,
    packed_elements,
    reads_windows,
    row_bytes,
)
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW, QUANTIZED
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import tensor_instructions
from tvmconv.targets.devices import FURTHER_KERNEL, KERNEL, Gpu, gpu_of

from ...space import ceil_div
from ..machine import LINE
from ..model import p_norm
from .tiles import (
    Config,
    ahead,
    blocks,
    converted_products,
    copied_rows,
    goes_on,
    part_chunks,
    stores_matrices,
    stores_registers,
    tf32_products,
    weight_split,
)

L2_BYTES = 48.0
"""The bytes that a multiprocessor gets from the L2 cache in a clock. Like the next four numbers it is fitted to layers
in float16 on an H200."""

STORED_BYTES = 22.0
"""The bytes of sums that a multiprocessor takes through shared memory to the output in a clock."""

SHARED_BYTES, THROTTLED, STORED_MEANWHILE = 118.0, 1.15, 90.0
"""The bytes that go through shared memory in a clock, the time of products as a multiple of what the tensor cores' rate
says, since the GPU then lowers its clock, and the bytes of sums stored in a clock: of blocks whose warps have roles,
fitted to 36 layers in float16 on an H200, at batch 32 and 128. Such blocks store rows that are no power of two in parts
of a line: a tile of 192x144, in parts of 32 bytes, took twice as long as one of 192x128."""

BROUGHT_BYTES = 60.0
"""The bytes that the copy engine brings to a multiprocessor in a clock: with it the default tiles of 28 layers in
float16 on an H100, of the im2win thesis and of ResNet-50, take 1.02 times as long as the fastest of eight each."""

FINISHED_BYTES, FINISHING_GROUPS = 7.8, 1.9
"""The bytes of sums that four warps of a team take in a clock where they wait for a residual to add to them, and the
most groups of four warps of which this is so. These, the numbers down to `WAIT`, `GATHERING` and `FURTHER_KERNEL` are
fitted to 1087 tiles of 56 layers in float16 on an H100, linear ones of 32 to 100352 rows and convolutions at batch 1,
32 and 128: the tile of least estimate takes 1.03 times as long as the fastest in the mean, and 1.3 times at worst."""

LATENCY, BEGINNING, ROLES = 3000.0, 350.0, 2200.0
"""The clocks of a kernel until its first chunk has come, those in which a block begins where another one was, and those
that a kernel takes more whose warps have roles. With the first one estimates choose between this template and
`cuda/grouped` as 48 measurements of 16 layers do, at batch 1, 8 and 32 on an H100, but for one."""

ARRIVAL = 500.0
"""The clocks from a chunk's copies until it is in shared memory."""

COPYING = 56.0
"""The clocks of a thread for an asynchronous copy, most of them for its addresses."""

STORING, RESIDUAL, NARROW_COLUMNS = 45.0, 2.6, 32
"""The clocks of a thread for each sum that it stores, the multiple of them where it adds a residual, and the columns of
a tile below which that takes twice as long."""

ACTIVATING = 2.3
"""The clocks of a thread for each operation of a sum's activation, while others of its block compute theirs."""

WAIT = 500.0
"""The clocks from a chunk's barrier to its first product, where products do not go on."""

SPLITTING = 1.6
"""The time of three products by `mma`, which takes both factors apart in registers, as a multiple of their own."""

ROUNDING = {1: 1.1, 3: 1.3}
"""The time of one product and of three by `wgmma`, whose first factor all warps round before they wait for the product,
as a multiple of their own. Like `ROUNDED` it is fitted to six layers in float32 on an H100, at batch 128."""

ROUNDED, READING = 600.0, 200.0
"""The clocks in which a group of four warps reads and takes apart 64 rows of its first factor for three products, and
those in which it rounds them for one, beyond what the product before hides of that. The other groups of a team multiply
meanwhile. Of n groups all but the one that reads share the tensor cores, so that a group's three products take n - 1
times as long as alone.
Fitted on an H100 at batch 128: to 24 tiles of five layers in float32, which take 0.96 to 1.09 times as long as their
estimates, and to 32 tiles of eight layers in TF32, of which those of least estimate take 1.02 times as long as the
fastest in the mean."""

NARROW_ROW, CUT_ROW = 112.0, 3.0
"""The bytes that the copy engine brings in the time of a row of 64 or 32 bytes, and the clocks that a row takes more
which goes on past the last channel, where it brings zeros; fitted, with the wait for chunks of two lengths in turn, to
500 tiles of 50 layers in float16 on an H100."""

PAST_ROW = 1.5
"""The clocks that a row takes more which is past the last pixel, where the copy engine brings zeros: 1 to 3 in eight
pairs of tiles, in float16 and TF32 on an H100, of which one has 24 to 128 such rows more than the other one."""

STORED_DIRECTLY = 30.0
"""The bytes of sums that a team stores from its registers in a clock, or of channels as rows by way of shared memory,
where each goes by itself: a thread has pairs of pixels then, which are not side by side. Results in half precision,
which warps transpose, go as fast as those of channels as columns: see `STORED_MEANWHILE`."""

INTEGERS_STORED = (20.0, 60.0)
"""The bytes of sums of int8 numbers that a team stores from its registers in a clock, of channels as columns and as
rows: fitted to 36 layers on an H100, whose default tiles take 1.03 times as long as the fastest of six each."""

FETCHED_BYTES, GATHERING = 16.0, 700.0
"""The bytes of sums that a block reads of those of its cluster in a clock, and the clocks, for each block of a cluster,
in which they begin together and wait for each other's sums."""

PAIR, CLUSTERED = 2, 10 / 11
"""The blocks of a cluster that leaves no multiprocessor idle, and the share of multiprocessors that larger ones find
room on: a cluster has to fit into a group of multiprocessors, and the driver of an H100 has room for 66 clusters of two
blocks that fill a multiprocessor, for 30 of four and for 15 of eight."""

IMAGE, WINDOWS, ROUNDED_IN_CACHE = 2.0, 5.5, 0.5
"""The time that it takes to lay out the input, to lay out the rows of its windows, and to round one alone that stays in
the L2 cache with its copy, as multiples of the time for their bytes in memory. The second one is that of 3x3 windows of
3 channels at batch 32 and 128 on an H100. With the third one, and with `BROUGHT_BYTES`, the default tiles of sixteen
layers in TF32, at batch 32 and 128, take 1.02 times as long as the fastest of eight tiles each."""


def saved_launch(problem: Problem) -> float:
    """Return the clocks that a call saves of an estimate with a kernel that lays out the weight, if that runs ahead."""
    return FURTHER_KERNEL if problem.constant_weight else 0.0


def kernel_clocks(problem: Problem, config: Config, target: tvm.target.Target, resident: int, exchanged: bool) -> float:
    """Return the clocks that the kernels should take, of factors that may have been exchanged.

    Three things bound the product: the units of the busiest multiprocessor, which its blocks share, the blocks that
    have to wait for one another where it has room for so many `resident` ones, and the memory. What is computed from a
    constant weight alone takes none.
    """
    workload, gpu = problem.workload, gpu_of(target)
    clustered = config.in_cluster and config.split_k > PAIR
    turns = ceil_div(blocks(workload, config), int(gpu.multiprocessors * (CLUSTERED if clustered else 1)))
    together = min(turns, resident)
    product = _product_clocks(problem, config, target)
    copied = sum(copied_rows(problem, config)) * ROW_BYTES
    step, chunks = max(product, copied / L2_BYTES), part_chunks(workload, config)
    stored = config.block_m * config.block_n * workload.sum_bytes / STORED_BYTES
    if goes_on(problem, config):
        alone = max(step, copied / COPY_BYTES / config.threads * COPYING, ARRIVAL / max(1, ahead(problem, config)))
    else:
        alone = product + copied / L2_BYTES / 2 + WAIT
    storing = config.sums * STORING
    if workload.epilogue.residual:
        storing *= RESIDUAL * (2 if config.block_n < NARROW_COLUMNS else 1)
    activating = config.sums * ACTIVATING * workload.epilogue.operations(workload.output_storage.name in NARROW)
    units = turns * (chunks * step + stored)
    waiting = ceil_div(turns, together) * (BEGINNING + chunks * alone + storing + activating)
    if config.teams:
        units, waiting = _specialized_clocks(problem, config, turns, product), 0.0
        units += ROLES + ceil_div(turns, config.teams) * activating
    weight, packed = prod(workload.w_shape) * workload.itemsize, _packed_bytes(problem, config)
    memory = (workload.bytes_moved + max(0, packed - weight)) / gpu.bytes_per_clock
    parts = 2 * config.split_k * prod(workload.output_shape) * workload.sum_bytes if config.kernels > 1 else 0
    kernels, laid_out = config.kernels, 0.0
    if exchanged or not problem.constant_weight:
        kernels += (packed > 0) + (workload.zero_point != 0)
        laid_out += weight + packed if packed else 0
    if (config.rounds_input or lays_out_input(workload)) and not (exchanged and problem.constant_weight):
        kernels += 1
        laid_out += layout_bytes(workload, gpu)
    others = (parts + laid_out) / gpu.bytes_per_clock + KERNEL + (kernels - 1) * FURTHER_KERNEL + LATENCY
    if config.in_cluster:
        others += config.block_m * config.block_n * workload.sum_bytes / FETCHED_BYTES + config.split_k * GATHERING
    return mostly_largest(units, waiting, memory) + others


def layout_bytes(workload: ConvWorkload, gpu: Gpu) -> float:
    """Return the bytes that memory moves in the time in which the input is laid out, or rounded alone."""
    image = (prod(workload.x_shape) + image_elements(workload)) * workload.itemsize
    if lays_out_input(workload):
        return image * (WINDOWS if reads_windows(workload) else IMAGE)
    return image * (ROUNDED_IN_CACHE if image <= gpu.l2_room else 1.0)


def _packed_bytes(problem: Problem, config: Config) -> int:
    """Return the bytes of the weight as it is laid out first; 0 where it is not."""
    workload, split = problem.workload, weight_split(problem, config)
    if not lays_out_weight(workload, split):
        return 0
    return max(1, split) * packed_elements(workload) * workload.itemsize


def _specialized_clocks(problem: Problem, config: Config, turns: int, product: float) -> float:
    """Return the clocks of a multiprocessor whose block copies, multiplies and stores at the same time.

    Each instruction of `wgmma` reads 32 bytes of each of its columns, and those of its 64 rows are read once.
    """
    workload, groups = problem.workload, config.warps_m * config.warps_n
    products, brought = converted_products(problem, config), _bringing_clocks(problem, config)
    copied = sum(copied_rows(problem, config)) * mean_row_bytes(workload)
    read_bytes = multiplied_share(workload) * ROW_BYTES
    read = prod(config.tile.rows) // 64 * (64 + prod(config.tile.columns) * max(1, products)) * read_bytes
    arrival = ARRIVAL / (config.num_stages - 1)
    rows, beside = config.tile.tiles_m, max(1, groups - 1)
    if last_steps(workload) < STEPS and chunks_of_tap(workload) > 1:  # long chunks arrive while short ones are used
        arrival = (brought + ARRIVAL + product) / config.num_stages
    alone = {0: 0.0, 1: READING * rows + product / groups, 3: ROUNDED * rows + product * beside / groups}[products]
    multiplying = product if products == 3 else THROTTLED * product
    step, last_step = (
        mostly_largest(max(multiplying, (read + copied) / SHARED_BYTES, bringing), alone, arrival)
        for bringing in (brought, brought + _rows_past_the_end(workload, config) * PAST_ROW)
    )
    tile = part_chunks(workload, config) * step
    last = part_chunks(workload, config) * (last_step - step)
    sums = config.block_m * config.block_n * workload.sum_bytes
    if workload.epilogue.residual:
        finishing = sums / (FINISHED_BYTES * min(groups, FINISHING_GROUPS))
        return last + mostly_largest(turns * tile, ceil_div(turns, config.teams) * (tile + finishing))
    if stores_registers(problem, config) and workload.dtype in QUANTIZED:
        rate = INTEGERS_STORED[config.channel_rows]
    elif stores_registers(problem, config) or (config.channel_rows and not stores_matrices(workload, config)):
        rate = STORED_DIRECTLY
    else:
        itemsize = workload.output_storage.itemsize
        rate = STORED_MEANWHILE * gcd(config.block_n, LINE // itemsize) * itemsize / LINE
    storing = sums / rate
    if config.teams == 1:
        return last + turns * (tile + storing)
    return last + mostly_largest(turns * tile + storing, ceil_div(turns, config.teams) * (tile + storing))


def _rows_past_the_end(workload: ConvWorkload, config: Config) -> int:
    """Return the rows of the last tile that are past the last pixel."""
    return -workload.batch * prod(workload.output_size) % config.block_m


def _bringing_clocks(problem: Problem, config: Config) -> float:
    """Return the clocks in which the copy engine brings a chunk."""
    workload = problem.workload
    pixels, *columns = copied_rows(problem, config)
    clocks = (pixels + sum(columns)) * mean_row_bytes(workload, NARROW_ROW) / BROUGHT_BYTES
    if row_bytes(last_steps(workload)) > last_steps(workload) * STEP_BYTES:
        # Behind a tap's last channels of the weight are those of the next tap, if there is one.
        cut = pixels if prod(workload.kernel) > 1 else pixels + sum(columns)
        clocks += cut * CUT_ROW / chunks_of_tap(workload)
    return clocks


def mostly_largest(*clocks: float) -> float:
    """Return what several bounds take together: the fourth power makes a little of the lesser ones count as well."""
    return float(p_norm(4, *clocks))


def _product_clocks(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks of a multiprocessor's tensor cores for a chunk of a block."""
    itemsize, products = problem.workload.itemsize, tf32_products(problem)
    converted = converted_products(problem, config)
    half = tensor_instructions(target)["wgmma" if config.wgmma else "mma"].products
    rate = half * 2 / itemsize / max(1, products)
    share = multiplied_share(problem.workload) if config.teams else 1
    clocks = share * config.block_m * config.block_n * ROW_BYTES / itemsize / rate
    if converted and config.wgmma and not config.teams:
        return clocks * ROUNDING[converted]
    return clocks * SPLITTING if converted == 3 and not config.wgmma else clocks
