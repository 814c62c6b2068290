"""Convolution of integers and bfloat16 on a CPU by instructions that add up products of several input channels at once.

Tiles of outputs in registers read the input directly, or a padded copy of it, a few neighbouring channels at a time;
`tvmconv.targets.instructions` has a row for each instruction. One in NCHW is copied into groups of an instruction's
terms. `vpdpbusd` wants a first factor without a sign, `sdot` one with a sign: other numbers get their sign bit changed
when they are read, and 128 times the sum of the weights is subtracted, as for any zero point.

`vdpbf16ps` takes denormal numbers for zeros, as oneDNN's bfloat16 does, and its denormal sums too. On Intel's cores
with AMX it takes as long as four multiply-adds of float32 (measured on Granite Rapids), so that there the dot product
of bfloat16 is slower than float32.

On a core of Zen 4 layers of ResNet-50 reach 90 to 99% of the peak of `vpdpbusd` in blocks of channels, the weight laid
out ahead, and 96 to 99% of that of `vdpbf16ps`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import compute
from tvmconv.compute.dense.dot import depth, staged_layout, zero_of
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import dot_instruction

from ...template import Layouts
from ..direct import register_tiles
from ..direct.tiles import TileConfig
from ..model import Counts
from ..template import CpuTemplate, Tests
from . import tiles
from .intrinsics import BFLOAT16_CODE, dot_intrinsic
from .schedule import pack_weight, split_tasks, stage_input, store_tile
from .tiles import band_of, instruction_of


@dataclass(frozen=True)
class Config(TileConfig):
    """The knobs, which are those of `TileConfig`; of a plane that is one row, `tiles` lie side by side."""


class Dot(CpuTemplate[Config]):
    """Convolution of integers and bfloat16 on a CPU, by dot products of vectors."""

    LAYOUTS = Layouts(
        x=("NCHW", "NHWC", "NCHWc"),
        w=("KCRS", "KRSC"),
        output=("NCHW", "NHWC", "NCHWc"),
        dtypes=(*QUANTIZED, "bfloat16"),
    )
    OPEN_SIZES: tuple[str, ...] = ("batch",)
    LEAST = Config(1, 1, 1, 1, 1, 1, staged=0, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((1, 48, 9, 11), (64, 48, 3, 3), dtype="int8", out_dtype="uint8", residual=True)),
        Problem(ConvWorkload.conv2d((2, 20, 7, 6), (36, 5, 3, 3), dtype="uint8", groups=4, x_zero_point=9)),
        Problem(
            ConvWorkload.conv2d((1, 13, 12, 16), (32, 3, 3, 16), dtype="int8", layout="NHWC", stride=2, dilation=2)
        ),
        Problem(ConvWorkload.conv2d((1, 12, 9, 7), (20, 12, 3, 3), dtype="bfloat16", shift=True, activation="relu")),
        Problem(
            ConvWorkload.conv2d((4, 64, 1, 1), (80, 64, 1, 1), dtype="uint8", x_zero_point=9), open_sizes=OPEN_SIZES
        ),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
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

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        return tiles.knobs(problem, target)

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        return tiles.constraints(problem, target)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        def estimate(tile: TileConfig) -> float:
            return self.estimate(problem, _with_tasks(problem, tile, target), target)

        return tiles.heuristics(problem, target, estimate)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        return (_with_tasks(problem, tile, target) for tile in tiles.register_tiles(problem, target))

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return tiles.counts(problem, config, target)

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload, terms = problem.workload, instruction_of(problem, target).terms
        cost = self.estimate(problem, config, target)
        return tiles.tile_features(workload, config, cost, channels=depth(workload, terms))

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return register_tiles.ablations(config)

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        workload, instruction = compute.with_open_sizes(problem), instruction_of(problem, target)
        block, lanes, channels, terms = config.block, config.vector, config.channels, instruction.terms
        has_zero = zero_of(workload, instruction.first) != 0
        layout = staged_layout(workload, terms) if config.staged else None
        tile = (block, *band_of(workload, config))
        sch = Schedule(te.create_prim_func(compute.dot(workload, instruction, tile, depth(workload, terms), layout)))

        # Step 1. Tasks and tiles; the weight, packed; the input, read directly or copied
        tasks = split_tasks(sch, workload, config, has_zero)
        loops = [tasks.task, pack_weight(sch, config, terms, has_zero)]
        if config.staged:
            loops += stage_input(sch, workload, config, tasks.task)
        if config.parallel:
            for loop in loops:
                sch.parallel(loop)

        # Step 2. Sum a tile in registers, input channels inside the taps
        accumulate = tasks.tiles[-1]
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
            sch.annotate(tasks.task, "pragma_import_llvm", BFLOAT16_CODE)

        # Step 3. Store it
        store_tile(sch, workload, config, tasks, instruction.sums)
        return sch


def _with_tasks(problem: Problem, tile: TileConfig, target: tvm.target.Target) -> Config:
    return Config(**vars(tiles.with_tasks(problem, tile, target)))


template = Dot()
