"""Convolution of integers and bfloat16 on a CPU by instructions that add up products of several input channels at once.

Tiles of outputs in registers read the input in place, or a padded copy of it, a few neighbouring channels at a time. On
a core of Zen 4 layers of ResNet-50 reach 90 to 99% of the peak of `vpdpbusd` in blocks of channels, the weight laid out
ahead, and 96 to 99% of that of `vdpbf16ps`.
"""

from __future__ import annotations

from dataclasses import dataclass

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.dot import is_row, zero_of
from tvmconv.dtypes import QUANTIZED
from tvmconv.layout import channel_block
from tvmconv.problem import Problem
from tvmconv.targets import dot_instruction

from ..space import Space, divisors
from ..template import Layouts
from .dot_intrinsics import BFLOAT16_CODE, dot_intrinsic
from .dot_tiles import band_of, best_tile, constraints, cycles, features, heuristics, instruction_of, knobs
from .machine import LINE_BYTES
from .register_tiles import ablations, transpose
from .tile_cost import TileConfig

__all__ = [
    "LAYOUTS",
    "LEAST",
    "OPEN_SIZES",
    "VERSION",
    "Config",
    "ablations",
    "default_config",
    "estimate",
    "features",
    "obstacle",
    "schedule",
    "space",
]

VERSION = 1

LAYOUTS = Layouts(
    x=("NCHW", "NHWC", "NCHWc"), w=("KCRS", "KRSC"), output=("NCHW", "NHWC", "NCHWc"), dtypes=(*QUANTIZED, "bfloat16")
)

OPEN_SIZES: tuple[str, ...] = ("batch",)


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`; of a plane that is one row, `tiles` lie side by side."""


LEAST = Config(1, 1, 1, 1, 1, 1, staged=0, parallel=False)


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take convolutions whose channels meet; several groups in NCHW, and outputs in blocks of a vector's lanes."""
    workload = problem.workload
    if not problem.is_dense:
        return "is for dense convolutions"
    instruction = dot_instruction(target, workload.dtype)
    if instruction is None:
        return f"has no instruction for {workload.dtype}"
    if workload.groups > 1 and (workload.layout, workload.out_layout) != ("NCHW", "NCHW"):
        return f"takes one group in other layouts than NCHW, not {workload.groups}"
    if channel_block(workload.layout) % instruction.terms and channel_block(workload.layout) > 1:
        return f"reads blocks in multiples of {instruction.terms} channels, not {channel_block(workload.layout)}"
    if channel_block(workload.out_layout) not in (1, instruction.lanes):
        return f"writes blocks of {instruction.lanes} channels, not {channel_block(workload.out_layout)}"
    if workload.out_layout == "NHWC" and workload.out_channels % instruction.lanes:
        return f"writes NHWC in multiples of {instruction.lanes} channels, not {workload.out_channels}"
    return None


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations worth trying for a workload, legal on the target."""
    default = default_config(problem, target)
    return Space(default, LEAST, knobs(problem, target), constraints(problem, target), heuristics(problem, target))


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return a legal configuration that is reasonable for any workload."""
    return Config(**vars(best_tile(problem, target)))


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the cycles that a core should take for an image."""
    return cycles(problem, config, target)


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
    # Step 0. The computation, rounded up to whole tiles
    workload, instruction = compute.with_open_sizes(problem), instruction_of(problem, target)
    block, lanes, channels, terms = config.block, config.vector, config.channels, instruction.terms
    tile = (block, *band_of(workload, config))
    sch = Schedule(te.create_prim_func(compute.dot(workload, instruction, tile, config.staged > 0)))
    packed, accumulate, output = (sch.get_sblock(name) for name in ("packed", "dot", "output"))
    if zero_of(workload, instruction.first) and workload.groups == 1:
        sch.compute_inline(sch.get_sblock("sums"))
    if workload.groups > 1:
        sch.reverse_compute_inline(output)
        output = sch.get_sblock("groups")

    # Step 1. A task is a band of one image: for all channels if it stages its input, else for those of one tile
    in_rows = workload.out_layout == "NCHW"
    if in_rows:
        n, *group, k, y, x = sch.get_loops(output)
        kb, ki = sch.split(k, [None, block])
        kb, inner = sch.fuse(*group, kb), [ki]
    elif workload.out_layout == "NHWC":
        n, y, x, k = sch.get_loops(output)
        kb, *inner = sch.split(k, [None, config.vectors, lanes])
    else:
        n, k, y, x, lane = sch.get_loops(output)
        kb, ki = sch.split(k, [None, config.vectors])
        inner = [ki, lane]
    if is_row(workload):
        band, xo, xi = sch.split(x, [None, config.tiles, config.columns])
        bands, within = [y, band], [xo]
        yi: list[LoopRV] = []
    else:
        band, yo, row = sch.split(y, [None, config.tiles, config.rows])
        xo, xi = sch.split(x, [None, config.columns])
        bands, within, yi = [band], [yo, xo], [row]
    outer = [n, *bands, kb] if config.staged == 1 else [kb, n, *bands]
    sch.reorder(*outer, *within, *yi, *([*inner, xi] if in_rows else [xi, *inner]))
    task = sch.fuse(*(outer[:-1] if config.staged == 1 else outer))
    loops = [task]

    # Step 2. Pack the weight, in the order of the reduction
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
    loops.append(sch.fuse(b, co))
    if zero_of(workload, instruction.first):
        offsets = sch.get_sblock("offsets")
        k, *terms_of = sch.get_loops(offsets)
        if config.parallel:
            sch.parallel(k)
        sch.decompose_reduction(offsets, sch.fuse(*terms_of))  # a loop without a test, of which LLVM makes vectors

    # Step 3. Copy the input
    tiles = [sch.cache_read(output, 0, "global"), accumulate] if in_rows else [accumulate]
    for stage in tiles:
        sch.compute_at(stage, xo, preserve_unit_loops=True)
    if config.staged:
        pad = sch.get_sblock("pad")
        if config.staged == 1:
            sch.compute_at(pad, task, preserve_unit_loops=True)
        else:
            loops.append(sch.fuse(*sch.get_loops(pad)[:2]))
        *_, column, channel = sch.get_loops(pad)
        if workload.layout != "NCHW":
            sch.annotate(column, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
            at_once = divisors(int(sch.get(channel).extent), LINE_BYTES)[-1]
            sch.vectorize(sch.split(channel, [None, at_once])[1])
    if config.parallel:
        for loop in loops:
            sch.parallel(loop)

    # Step 4. Sum a tile in registers, input channels inside the taps
    sch.transform_layout(accumulate, ("write", 0), lambda n, k, h, w: (n, k // block, h, w, k % block))
    ki, yi, xi, c, r, s = sch.get_loops(accumulate)[-6:]
    co, ci, term = sch.split(c, [None, channels // terms, terms])
    ki, vector = sch.split(ki, [None, lanes])
    sch.reorder(co, r, s, ci, yi, xi, ki, vector, term)
    for loop in (yi, xi, ki):
        sch.unroll(loop)
    if not instruction.intrinsic:  # LLVM finds it
        sch.reorder(term, vector)
        sch.vectorize(vector)
    init = sch.decompose_reduction(accumulate, co)
    if instruction.intrinsic:
        sch.vectorize(sch.get_loops(init)[-1])
        read = instruction.first if config.staged else workload.dtype
        sch.tensorize(vector, dot_intrinsic(instruction, read))
    if instruction.sums == "float32":
        sch.annotate(task, "pragma_import_llvm", BFLOAT16_CODE)

    # Step 5. Store the tile; in rows of the output, as the epilogue is to see them, it is transposed
    if in_rows:
        for loop in transpose(sch, tiles[0], config.columns, lanes, instruction.sums):
            sch.unroll(loop)
        *_, ki, xi = sch.get_loops(output)
        sch.vectorize(xi)
    else:
        *_, xi, ki, lane = sch.get_loops(output)
        for loop in (xi, ki):
            sch.unroll(loop)
        sch.vectorize(lane)
    sch.annotate(xo, "pragma_loop_partition_hint", True)  # only the last tile of a row tests where the row ends
    return sch
