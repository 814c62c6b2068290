"""The steps that schedules of sums of products share: tasks, the weight, the input and the output.

The stages are those of `compute.dense.dot`.
"""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv.compute.dense.dot import is_row
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload

from ...space import divisors
from ..direct.register_tiles import transpose
from ..direct.tiles import TileConfig
from ..machine import LINE_BYTES
from .tiles import tile_of


class Tasks(NamedTuple):
    """The stage that is stored, and the loops around it."""

    output: SBlockRV
    task: LoopRV
    """The loop over tasks: bands of an image, for all channels or for those of one tile."""
    tile: LoopRV
    """The loop over tiles side by side, in whose turn one is summed."""
    tiles: tuple[SBlockRV, ...]
    """The stages that have the sums of a tile: the sums themselves, behind them in rows where they are stored so."""


def split_tasks(sch: Schedule, workload: ConvWorkload, config: TileConfig, has_zero: bool) -> Tasks:
    """Split the output into tasks and tiles, and compute sums at each tile; `has_zero` says whether zero is a number.

    A task is a band of one image: for all channels if it stages its input, else for those of one tile.
    """
    accumulate, output = (sch.get_sblock(name) for name in ("dot", "output"))
    if has_zero and workload.groups == 1:
        sch.compute_inline(sch.get_sblock("sums"))
    if workload.groups > 1:
        sch.reverse_compute_inline(output)
        output = sch.get_sblock("groups")
    in_rows = workload.out_layout == "NCHW"
    if in_rows:
        n, *group, k, y, x = sch.get_loops(output)
        kb, ki = sch.split(k, [None, config.block])
        kb, inner = sch.fuse(*group, kb), [ki]
    elif workload.out_layout == "NHWC":
        n, y, x, k = sch.get_loops(output)
        kb, *inner = sch.split(k, [None, config.vectors, config.vector])
    else:
        n, k, y, x, lane = sch.get_loops(output)
        kb, ki = sch.split(k, [None, config.block // channel_block(workload.out_layout)])
        inner = [ki, lane]
    rows, columns = tile_of(workload, config)
    if is_row(workload):
        band, xo, xi = sch.split(x, [None, config.tiles, columns])
        bands, within = [y, band], [xo]
        yi: list[LoopRV] = []
    else:
        band, yo, row = sch.split(y, [None, config.tiles, rows])
        xo, xi = sch.split(x, [None, columns])
        bands, within, yi = [band], [yo, xo], [row]
    outer = [n, *bands, kb] if config.staged == 1 else [kb, n, *bands]
    sch.reorder(*outer, *within, *yi, *([*inner, xi] if in_rows else [xi, *inner]))
    task = sch.fuse(*(outer[:-1] if config.staged == 1 else outer))
    tiles = (sch.cache_read(output, 0, "global"), accumulate) if in_rows else (accumulate,)
    for stage in tiles:
        sch.compute_at(stage, xo, preserve_unit_loops=True)
    return Tasks(output, task, xo, tiles)


def pack_weight(sch: Schedule, config: TileConfig, terms: int, has_zero: bool) -> LoopRV:
    """Lay the weight out in the order of the sums; return the loop to share among threads."""
    packed, channels = sch.get_sblock("packed"), config.channels
    sch.transform_layout(
        packed,
        ("write", 0),
        lambda b, c, r, s, k: (
            b,
            c // channels,
            r,
            s,
            *([c % channels // terms] if channels > terms else []),
            k,
            c % terms,
        ),
    )
    b, c, r, s, ki = sch.get_loops(packed)
    co, ci, term = sch.split(c, [None, channels // terms, terms])
    sch.reorder(b, co, r, s, ci, ki, term)
    if has_zero:
        offsets = sch.get_sblock("offsets")
        k, *terms_of = sch.get_loops(offsets)
        if config.parallel:
            sch.parallel(k)
        sch.decompose_reduction(offsets, sch.fuse(*terms_of))  # a loop without a test, of which LLVM makes vectors
    return sch.fuse(b, co)


def stage_input(sch: Schedule, workload: ConvWorkload, config: TileConfig, task: LoopRV) -> list[LoopRV]:
    """Copy the input, for each task or as a whole; return the loops to share among threads."""
    pad, loops = sch.get_sblock("pad"), list[LoopRV]()
    if config.staged == 1:
        sch.compute_at(pad, task, preserve_unit_loops=True)
    else:
        loops.append(sch.fuse(*sch.get_loops(pad)[:-2]))
    *_, column, channel = sch.get_loops(pad)
    if workload.layout != "NCHW":
        sch.annotate(column, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
        adjacent = channel_block(workload.layout) if workload.layout != "NHWC" else workload.in_channels
        run = gcd(int(sch.get(channel).extent), adjacent)  # of channels side by side that are all there, or none
        sch.vectorize(sch.split(channel, [None, divisors(run, LINE_BYTES)[-1]])[1])
    return loops


def store_tile(sch: Schedule, workload: ConvWorkload, config: TileConfig, tasks: Tasks, dtype: str) -> None:
    """Store a tile of sums of a type; in rows of the output, as the epilogue is to see them, it is transposed."""
    if workload.out_layout == "NCHW":
        for loop in transpose(sch, tasks.tiles[0], tile_of(workload, config)[1], config.vector, dtype):
            sch.unroll(loop)
        *_, ki, xi = sch.get_loops(tasks.output)
        sch.vectorize(xi)
    else:
        *_, xi, ki, lane = sch.get_loops(tasks.output)
        for loop in (xi, ki):
            sch.unroll(loop)
        sch.vectorize(lane)
    sch.annotate(tasks.tile, "pragma_loop_partition_hint", True)  # only the last tile of a row tests where the row ends
