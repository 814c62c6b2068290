"""The schedule of convolutions on tensor cores, the parts of which `cuda/winograd` has, too."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm import tirx
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.annotations import (
    BULK,
    CLUSTER_AXIS,
    FETCH,
    LAST_PRODUCT,
    MATRICES,
    MIN_BLOCKS,
    PRODUCT,
    RING,
    SETTLED,
    SPECIALIZED,
)
from tvmconv.compute.tensor.chunks import (
    STEPS,
    chunks_of_tap,
    copied_elements,
    has_channels_last,
    has_separate_groups,
    last_chunk_steps,
    lays_out_weight,
    reads_windows,
)
from tvmconv.compute.tensor.fragments import FragmentTile, row_major_number
from tvmconv.compute.tensor.gemm import finishes_early
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.targets.devices import WARP, gpu_of

from ...space import divisors
from ..gemm.schedule import COPY_THREADS, begin, copy_asynchronously, spread_over_grid
from .bulk import column_copy, weight_copy
from .intrinsics import matrices_function, product_function, settled_function
from .tiles import (
    BANK_BYTES,
    PLANE_LANES,
    Config,
    ahead,
    bank,
    is_asynchronous,
    passes,
    plane_vector,
    role_registers,
    store_lanes,
    store_vector,
    stores_matrices,
    stores_planes,
    stores_registers,
    tile_of,
    tile_type,
    weight_split,
)

READ_AT_ONCE = 8
"""The vectors of the residual, or of other blocks' sums, that a thread reads before it waits for the first one."""


def schedule_convolution(problem: Problem, config: Config, target: tvm.target.Target, weight_is_x: bool) -> Schedule:
    """Schedule the computation, where the weight may take the part of x; the config must be legal for the problem."""
    # Step 0. The computation, rounded up to whole tiles
    workload, weight_parts = compute.with_open_sizes(problem), weight_split(problem, config)
    form = compute.TensorForm(
        split_k=config.split_k,
        weight_parts=weight_parts,
        in_tile=config.in_cluster,
        by_tap=config.teams > 0,
        rounds_input=config.rounds_input,
        weight_is_x=weight_is_x,
    )
    sch = begin(compute.tensor_gemm(workload, tile_of(problem, config), form), problem, config.in_cluster)
    sums, planes, output = (sch.get_sblock(name) for name in ("sums", "planes", "output"))

    # Step 1. What a block computes goes to the output, or to a kernel that adds up the parts
    if config.kernels > 1:
        if stores_planes(problem):  # in the order in which the second kernel reads
            sch.transform_layout(sums, ("write", 0), lambda part, p, group, k: [part, group, k, p])
        sch.compute_at(planes, spread_over_grid(sch, output), preserve_unit_loops=True)
        sch.set_scope(planes, 0, "local")
    else:
        sch.compute_inline(planes)
        sch.reverse_compute_inline(output)

    # Step 2. Multiply
    schedule_product(sch, problem, config, target)

    # Step 3. Lay out the input in a separate kernel, and add up the products of the zero point
    stages = [sch.get(block).name_hint for block in sch.get_child_blocks(sch.get_sblock("root"))]
    if "image" in stages:
        lay_out_image(sch, problem)
    if "offsets" in stages:
        _add_up_offsets(sch)
    finish_stores(sch, problem, config)
    return sch


def schedule_product(
    sch: Schedule, problem: Problem, config: Config, target: tvm.target.Target, nearest: bool = False
) -> None:
    """Schedule the stages of `compute.tensor.gemm` from the factors up to "sums", for which each block has a tile.

    See `intrinsics.product_function` for `nearest`.
    """
    workload, tile, split = compute.with_open_sizes(problem), tile_of(problem, config), weight_split(problem, config)
    multiprocessors = gpu_of(target).multiprocessors
    through = passes(problem, config, multiprocessors)
    columns, product, tiled = (sch.get_sblock(name) for name in ("columns", "product", "tile"))
    stored_tile = None
    if stores_matrices(workload, config):
        stored_tile, tiled = tiled, sch.cache_write(tiled, 0, "local")
    weights = [sch.get_sblock(name) for name in ("weights", "rests")[: max(1, split)]]

    # Step 1. Tile the stored elements, unless threads store their sums as they are
    from_registers = stores_registers(problem, config)
    if not from_registers:
        _store_lines(sch, problem, config, tiled, through)

    # Step 2. Sums are in the registers of the threads that the tensor cores expect them in
    part, pt, kt, wm, i, v, h, r, wn, j, q, e = sch.get_loops(tiled)[-12:]
    # The sums of a channel, or of those that are stored at once, follow one another.
    unrolled, at_once = [j, i, h], [e]
    if tile.channel_rows:
        unrolled, at_once = [i, h, j, e], []
    sch.reorder(part, pt, kt, wm, wn, v, r, q, *unrolled, *at_once)
    tiles = [part, pt, kt]
    if from_registers:
        outer, kt = sch.split(kt, [workload.groups if has_separate_groups(workload) else through, None])
        sch.reorder(outer, pt, kt)
        sch.bind(sch.fuse(part, outer, pt, kt), "blockIdx.x")
        tiles = []
    elif config.in_cluster:
        sch.bind(tiles.pop(0), "blockIdx.y")
    thread = sch.fuse(*tiles, wm, wn, v, r, q)
    sch.bind(thread, "threadIdx.x")
    if config.min_blocks_per_sm > 1:
        sch.annotate(thread, MIN_BLOCKS, config.min_blocks_per_sm)
    if stored_tile is not None:
        sch.compute_at(stored_tile, thread, preserve_unit_loops=True)
        unrolled = [i, *sch.get_loops(stored_tile)[-len(tile.rows + tile.columns) :]]
    sch.compute_at(product, thread, preserve_unit_loops=True)
    sch.set_scope(product, 0, "local")
    for loop in unrolled:
        sch.unroll(loop)
    for loop in at_once:
        sch.vectorize(loop)

    # Step 3. Accumulate chunk by chunk
    *_, i, j, h, e, chunk, copy, lane = sch.get_loops(product)
    sch.reorder(chunk, copy, i, j, h, e, lane)
    for stage in (columns, *weights):
        sch.set_scope(stage, 0, "shared.dyn")
        sch.compute_at(stage, chunk, preserve_unit_loops=True)
        vector = copy_asynchronously(sch, stage, config.threads, permuted=True)
        if config.teams and stage in weights:
            sch.annotate(vector, BULK, list(weight_copy(workload, tile.block_n, weights.index(stage))))
        elif config.teams:
            sch.annotate(vector, BULK, list(column_copy(workload, tile.block_m, config.rounds_input)))
    init = sch.decompose_reduction(product, chunk)
    for loop in sch.get_loops(init)[-4:]:
        sch.unroll(loop)
    sch.annotate(sch.blockize(copy), PRODUCT, list(product_function(problem, config, nearest=nearest)))
    if config.teams:
        if (left := last_chunk_steps(workload)) < STEPS:
            last_product = product_function(problem, config, left, nearest)
            sch.annotate(chunk, LAST_PRODUCT, [chunks_of_tap(workload), *last_product])
        roles = config.num_stages, multiprocessors, config.teams, config.threads
        sch.annotate(chunk, SPECIALIZED, [*roles, *role_registers(config), int(is_asynchronous(problem, config))])
        if config.channel_rows and workload.dtype in NARROW and finishes_early(workload, config.split_k):
            sch.annotate(chunk, SETTLED, list(settled_function(config)))
    else:
        sch.annotate(chunk, RING, [ahead(problem, config), int(config.wgmma), int(is_asynchronous(problem, config))])

    # Step 4. Lay out the weight in a separate kernel
    if lays_out_weight(workload, split):
        _lay_out_weight(sch, problem)


def finish_stores(sch: Schedule, problem: Problem, config: Config) -> None:
    """Store sums from registers, or results in matrices, where the configuration says so.

    It is the last step: TVM schedules nothing further where a block has a condition for elements past the end, or where
    it declares to store more than it does.
    """
    if stores_registers(problem, config):
        sch.reverse_compute_inline(sch.get_sblock("sums"))
    elif stores_matrices(problem.workload, config):
        *_, h, _, _ = sch.get_loops(sch.get_sblock("tile_local"))
        sch.annotate(sch.blockize(h), MATRICES, list(matrices_function(problem, config)))


def _store_lines(sch: Schedule, problem: Problem, config: Config, tiled: SBlockRV, through: int) -> None:
    """Store tiles by way of shared memory, in whole lines: blocks, then threads along the lines in memory.

    Blocks go through all pixels `through` times, see `passes`.
    """
    workload, tile = problem.workload, config.tile
    sums = sch.get_sblock("sums")
    part, p, groups, k = sch.get_loops(sums)
    pt, pi = sch.split(p, [None, tile.block_m])
    outer, kt, ki = sch.split(k, [through, None, tile.block_n])
    tile_loops: tuple[LoopRV, ...] = (ki, pi) if stores_planes(problem) else (pi, ki)
    # Blocks that read the same pixels run side by side. TVM cannot divide by a number of tiles that it does not know.
    if problem.open_sizes:
        blocks = pt, groups, outer, kt, part
    else:
        blocks = (part, groups, outer, pt, kt) if has_separate_groups(workload) else (part, outer, pt, groups, kt)
    sch.reorder(*blocks, *tile_loops)
    block = sch.fuse(*blocks)
    sch.bind(block, "blockIdx.x")
    for stage in (sch.get_sblock("fetched"), tiled) if config.in_cluster else (tiled,):
        sch.compute_at(stage, block, preserve_unit_loops=True)
    sch.set_scope(tiled, 0, "shared.dyn")
    sch.transform_layout(tiled, ("write", 0), lambda *index: _as_matrix(tile, index))
    sch.storage_align(tiled, 0, -2, BANK_BYTES // tile_type(workload, config).itemsize, bank(problem, config))
    if stores_planes(problem):
        ki, k_lane = sch.split(ki, [None, WARP // PLANE_LANES])
        pi, p_lane, vector = sch.split(pi, [None, PLANE_LANES, plane_vector(problem, config)])
        tile_loops = ki, pi, k_lane, p_lane
        sch.reorder(*tile_loops, vector)
    else:
        ki, k_lane, vector = sch.split(ki, [None, store_lanes(problem, config), store_vector(problem, config)])
        tile_loops = ki, pi, k_lane
        sch.reorder(*tile_loops, vector)
    sch.vectorize(vector)
    step, thread = sch.split(sch.fuse(*tile_loops), [None, config.threads])
    if config.in_cluster:
        share, step = sch.split(step, [config.split_k, None])
        sch.bind(share, CLUSTER_AXIS)
        sch.reorder(share, thread, step)
        _fetch(sch, sch.get_sblock("fetched"), step)
    else:
        sch.reorder(thread, step)
    if workload.epilogue.residual or config.in_cluster:
        _, at_once = sch.split(step, [None, divisors(int(sch.get(step).extent), READ_AT_ONCE)[-1]])
        sch.unroll(at_once)
    sch.bind(thread, "threadIdx.x")


def _fetch(sch: Schedule, fetched: SBlockRV, step: LoopRV) -> None:
    """Read the sums of an iteration, from all blocks of a cluster, to registers first: neighbouring ones at once."""
    dimensions = len(sch.get(fetched).iter_vars)
    sch.set_scope(fetched, 0, "local")
    sch.compute_at(fetched, step, preserve_unit_loops=True)
    *loops, column = sch.get_loops(fetched)[-dimensions:]
    for loop in loops:
        sch.unroll(loop)
    sch.annotate(column, FETCH, True)


def _as_matrix(tile: FragmentTile, index: Sequence[tirx.Var]) -> list[tirx.PrimExpr]:
    """Return the indices of an element of "tile": those of the tile, then the pixel and the channel in it."""
    which, (pixel, channel) = index[:3], tile.transposed(index[3:8], index[8:])
    return [*which, row_major_number(pixel, tile.pixels), row_major_number(channel, tile.channels)]


def _add_up_offsets(sch: Schedule) -> None:
    """Make "offsets", sums of the zero point's products, a separate kernel: a warp adds up those of a channel."""
    k, *terms = sch.get_loops(sch.get_sblock("offsets"))
    _, lane = sch.split(sch.fuse(*terms), [None, WARP])
    sch.bind(k, "blockIdx.x")
    sch.bind(lane, "threadIdx.x")


def _lay_out_weight(sch: Schedule, problem: Problem) -> None:
    """Make the weight's layout a separate kernel, in which a thread reads the elements of a vector and stores it.

    For a weight in two numbers it stores a vector of each.
    """
    packed = sch.get_sblock("packed")
    vector = sch.cache_write(packed, 0, "local")
    summand, *loops, c = sch.get_loops(vector)
    co, lane = sch.split(c, [None, copied_elements(problem.workload)])
    block, thread = sch.split(sch.fuse(*loops, co), [None, COPY_THREADS])
    sch.reorder(block, thread, summand, lane)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.unroll(summand)
    sch.vectorize(lane)
    sch.compute_at(packed, summand)
    sch.unroll(sch.get_loops(packed)[-1])


def lay_out_image(sch: Schedule, problem: Problem) -> None:
    """Make the input's layout a separate kernel, in which neighbouring threads read neighbours in memory.

    A thread stores a vector, whose elements it reads before: some of them may be zeros.
    """
    image, workload = sch.get_sblock("image"), problem.workload
    vector = sch.cache_write(image, 0, "local")
    n, h, v, c = sch.get_loops(vector)
    co, lane = sch.split(c, [None, copied_elements(workload)])
    # TVM cannot divide by an open width with its padding, nor by the size of a plane of an open height with its own.
    split_axes = 2 if "width" in problem.open_sizes else 1 if "height" in problem.open_sizes else 0
    images, plane = [n, h, v][:split_axes], [n, h, v][split_axes:]
    if reads_windows(workload):  # a thread stores the vectors of a window, whose taps are then constants
        pixels, thread = sch.split(sch.fuse(*plane), [None, COPY_THREADS])
        sch.reorder(*images, pixels, thread, co, lane)
        sch.unroll(co)
        block = sch.fuse(*images, pixels)
    elif has_channels_last(workload):
        vectors, thread = sch.split(sch.fuse(*plane, co), [None, COPY_THREADS])
        block = sch.fuse(*images, vectors)
    else:
        pixels, thread = sch.split(sch.fuse(*plane), [None, COPY_THREADS])
        sch.reorder(*images, pixels, co, thread, lane)
        block = sch.fuse(*images, pixels, co)
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    sch.vectorize(lane)
    outer = sch.get_loops(vector)[-2]
    sch.compute_at(image, outer)
    sch.unroll(sch.get_loops(image)[-1])
