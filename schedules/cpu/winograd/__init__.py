"""Winograd's convolution on a CPU: 3x3 kernels with fewer multiplications, as products of transformed tiles.

A band of tiles is transformed as a whole and stays in the second cache, while the product goes over the blocks of
output channels; the sums of a block are transformed, finished and stored at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute import WinogradTile
from tvmconv.compute.annotations import MAX_COLUMNS
from tvmconv.problem import Problem
from tvmconv.problem.layout import channel_block
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import cpu_of

from ...space import ceil_div, divisors, named, tile_sizes, wasted
from ...template import Layouts
from ..direct.register_tiles import transpose
from ..machine import PARALLEL_FLOPS
from ..model import Counts
from ..template import CpuTemplate, Tests
from .tiles import (
    INPUT_INSTRUCTIONS,
    MAX_VECTORS,
    Config,
    band_bytes,
    candidates,
    counts,
    max_columns,
    outputs_computed,
    tasks_of,
    tiles_across,
    tiles_of,
    tiles_of_band,
    weight_bytes,
    working_set,
)
from .transforms import input_transform, output_transform, weight_transform

MAX_SET_BYTES = 3 * 1024 * 1024
"""The most bytes of a band's input and sums, unless it is of one row: several times what a second cache holds.

On two cores of Zen 5 a band of 3.6 MB took 2.6 ms in one run and 4.6 in another, two bands of 2.1 MB 3.0 in both."""

LEAST_CHANNELS = 8
"""The least input channels for tiles of 4x4 outputs: sums of fewer products are promised to be more exact than these,
whose transforms round more (one wrong element in 380 random convolutions of any number of channels)."""

MAX_CHANNELS = 64
"""The most channels of a block that a tensor is in."""

COPIED_COLUMNS = 64
"""The most columns of outputs that are transposed at once, for an output in NCHW."""


def lanes_of(workload: ConvWorkload, target: tvm.target.Target) -> int:
    """Return the channels of a vector: those of a block in which tensors are, or else the native ones."""
    block = max(channel_block(workload.layout), channel_block(workload.out_layout))
    return block if block > 1 else cpu_of(target).lanes


def _schedule_weight(sch: Schedule, packed: SBlockRV, config: Config) -> LoopRV:
    """Schedule the transform of the weight; return its outermost loop."""
    kb, p, q, c, ki = sch.get_loops(packed)
    ki, vector = sch.split(ki, [None, config.vector])
    sch.reorder(kb, c, ki, p, q, vector)
    loop = sch.fuse(kb, c)
    sch.tensorize(p, weight_transform(config.outputs, config.vector))
    return loop


def _schedule_product(sch: Schedule, accumulate: SBlockRV, config: Config) -> None:
    """Schedule the products: the channels that lie side by side are the innermost loop."""
    *_, t, ki, c = sch.get_loops(accumulate)
    to, ti = sch.split(t, [None, config.tiles], disable_predication=True)  # what is beyond the band, nothing reads
    co, ci = sch.split(c, [None, config.vector])
    ki, vector = sch.split(ki, [None, config.vector])
    sch.reorder(to, co, ci, ti, ki, vector)
    for loop in (ti, ki):
        sch.unroll(loop)
    sch.vectorize(vector)
    sch.decompose_reduction(accumulate, co)


class Winograd(CpuTemplate[Config]):
    """Winograd's convolution on a CPU."""

    LAYOUTS = Layouts(x=("NCHW", "NCHWc"), output=("NCHW", "NCHWc"), dtypes=("float32", "bfloat16"))
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(2, 1, 1, 1, 1, 2, shared=False, parallel=False)
    examples = (
        Problem(ConvWorkload.conv2d((2, 5, 13, 11), (21, 5, 3, 3), shift=True, residual=True, activation="silu")),
        Problem(ConvWorkload.conv2d((6, 16, 7, 7), (32, 16, 3, 3), padding=0, dtype="bfloat16")),
        Problem(
            ConvWorkload.conv2d((1, 20, 6, 30), (24, 20, 3, 3), padding=(2, 0, 1, 3), scale=True), open_sizes=OPEN_SIZES
        ),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take 3x3 convolutions of one group with a stride of 1, if the precision lets errors spread to outputs nearby.

        Channels in blocks are those of a vector.
        """
        workload = problem.workload
        if not problem.is_dense or workload.groups > 1:
            return "is for dense convolutions of one group"
        if workload.kernel != (3, 3) or workload.stride != (1, 1) or workload.dilation != (1, 1):
            return "takes 3x3 kernels with a stride and a dilation of 1"
        if problem.precision == "strict":
            return "has errors that depend on outputs nearby, which precision strict rules out"
        blocks = {channel_block(layout) for layout in (workload.layout, workload.out_layout)} - {1}
        if len(blocks) == 2:
            return f"takes x and output in blocks of as many channels, not {workload.layouts}"
        if max(blocks, default=1) > MAX_CHANNELS:
            return f"takes blocks of at most {MAX_CHANNELS} channels, not {max(blocks)}"
        return None

    def knobs(self, problem: Problem, target: tvm.target.Target) -> Mapping[str, tuple[Any, ...]]:
        workload = problem.workload
        height = max(tiles_of(workload, outputs)[0] for outputs in INPUT_INSTRUCTIONS)
        return {
            "outputs": tuple(INPUT_INSTRUCTIONS),
            "rows": tile_sizes(height),
            "images": divisors(workload.batch, 16),
            "tiles": tuple(range(1, 29)),
            "vectors": tuple(range(1, MAX_VECTORS + 1)),
            "vector": (lanes_of(workload, target),),
            "shared": (False, True),
            "parallel": (True, False),
        }

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        workload = problem.workload

        def known_tiles(config: Config) -> bool:
            return config.outputs in INPUT_INSTRUCTIONS

        def exact(config: Config) -> bool:
            return config.outputs == 2 or workload.in_channels >= LEAST_CHANNELS

        def stored_blocks(config: Config) -> bool:
            return {channel_block(layout) for layout in (workload.layout, workload.out_layout)} <= {1, config.vector}

        def registers(config: Config) -> bool:
            vectors = config.vectors * ceil_div(config.vector, cpu_of(target).lanes)
            return 1 < config.vector <= MAX_CHANNELS and vectors * config.tiles <= cpu_of(target).registers

        def whole_images(config: Config) -> bool:
            if config.images == 1:
                return True
            is_known = {"batch", "height"}.isdisjoint(problem.open_sizes)
            rows = tiles_of(workload, config.outputs)[0]
            return is_known and workload.batch % config.images == 0 and config.rows == rows

        def waste(config: Config) -> bool:
            tiles = tiles_of(workload, config.outputs)
            whole = map(wasted, tiles, (config.rows, tiles_across(problem, config)))
            return max(whole) <= 2 and config.block <= max(64, 2 * workload.out_channels)

        def room(config: Config) -> bool:
            return config.rows == config.images == 1 or working_set(workload, config) <= MAX_SET_BYTES

        return named(known_tiles, exact, stored_blocks, registers, whole_images, waste, room)

    def heuristics(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        shapes = {
            (each.outputs, each.rows, each.images, each.tiles, each.vectors)
            for each in self._promising(problem, target)
        }

        def promising_tile(config: Config) -> bool:
            return (config.outputs, config.rows, config.images, config.tiles, config.vectors) in shapes

        def threads_for_work(config: Config) -> bool:
            return config.parallel == (problem.workload.flops >= PARALLEL_FLOPS) and (
                config.parallel or not config.shared
            )

        return named(promising_tile, threads_for_work)

    def _promising(self, problem: Problem, target: tvm.target.Target) -> list[Config]:
        """Return the configurations that the model finds at most a third slower than the best."""
        found = self.legal(self.candidates(problem, target), problem, target)
        costs = {each: self.estimate(problem, each, target) for each in found}
        return [each for each, cost in costs.items() if cost <= 4 / 3 * min(costs.values())]

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        return candidates(problem, target, lanes_of(problem.workload, target))

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        return counts(problem, config, target)

    def features(self, problem: Problem, config: Config, target: tvm.target.Target) -> dict[str, float]:
        workload = problem.workload
        count = tiles_of_band(workload, config)
        return {
            "tile": config.vectors * config.tiles,
            "block_read": channel_block(workload.layout),
            "block_written": channel_block(workload.out_layout),
            "points": config.points,
            "waste_outputs": outputs_computed(workload, config),
            "waste_tiles": wasted(count, config.tiles),
            "waste_channels": wasted(workload.out_channels, config.block),
            "weight_bytes": weight_bytes(workload, config),
            "band_bytes": band_bytes(workload, config),
            "tasks": tasks_of(workload, config),
            "cycles": self.estimate(problem, config, target),
            "reduction": workload.in_channels,
            "out_channels": workload.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "micro-kernel": replace(config, vectors=1, tiles=1),
            "large tiles": replace(config, outputs=2),
            "threads": replace(config, parallel=False, shared=False),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 1. A task is a band of tiles; its output channels are computed block by block
        workload = compute.with_open_sizes(problem)
        step, lanes, block = config.outputs, config.vector, config.block
        across = tiles_across(problem, config)
        tile = WinogradTile(step, config.rows, config.images, across, config.tiles, lanes, block)
        func = te.create_prim_func(compute.winograd(workload, tile))
        if "width" in problem.open_sizes:
            func = func.with_attr(MAX_COLUMNS, max_columns(workload, config))
        sch = Schedule(func)
        names = "blocks", "tiles", "packed", "winograd", "sums", "output"
        blocks, tiles, packed, accumulate, sums, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(sch.get_sblock("pad"))
        in_blocks = channel_block(workload.out_layout) > 1
        copy = None if in_blocks else sch.cache_read(output, 0, "global")
        n, k, h, w = sch.get_loops(output)[:4]
        n, image = sch.split(n, [None, config.images])
        kb, ki = sch.split(k, [None, config.vectors if in_blocks else block])
        band, row, yi = sch.split(h, [None, config.rows, step])
        at_once = 1 if in_blocks else max(divisors(across, max(1, COPIED_COLUMNS // step)))
        column, xi = sch.split(w, [None, at_once * step])
        inner = [ki, image, row, column, yi, xi] if in_blocks else [image, row, column, yi, ki, xi]
        sch.reorder(n, band, kb, *inner)
        task = sch.fuse(n, band)
        for stage in (sums,) if copy is None else (copy, sums):
            sch.compute_at(stage, column, preserve_unit_loops=True)
        sch.compute_at(accumulate, kb, preserve_unit_loops=True)
        sch.compute_at(tiles, task, preserve_unit_loops=True)

        # Step 2. The input of a band, transformed by blocks of channels
        *_, p, q, c, t, i = sch.get_loops(tiles)
        sch.reorder(c, t, p, q, i)
        sch.compute_at(blocks, c, preserve_unit_loops=True)
        *_, x, vector = sch.get_loops(blocks)
        sch.annotate(x, "pragma_loop_partition_hint", True)  # only the ends of a row are tested
        sch.vectorize(vector)

        # Step 3. The weight, all points of a vector of channels at once
        loops = [c, kb] if config.shared else [task]
        for copy_of_weight in sch.get_producers(packed):  # "taps", where the transform does not read the operand itself
            k, *elements = sch.get_loops(copy_of_weight)
            _, vector = sch.split(sch.fuse(*elements), [None, config.vector])
            sch.vectorize(vector)
            loops.append(k)
        loops.append(_schedule_weight(sch, packed, config))
        if config.parallel:
            for loop in loops:
                sch.parallel(loop)

        # Step 4. The products for a block of channels, summed in registers
        sch.tensorize(p, input_transform(step, lanes))
        _schedule_product(sch, accumulate, config)

        # Step 5. The transform of the sums, and the epilogue
        sch.transform_layout(sums, ("write", 0), lambda n, k, h, w: (n, k // lanes, h, w, k % lanes))
        sch.reorder_block_iter_var(sums, [0, 2, 3, 1])
        *_, k, h, w = sch.get_loops(sums)
        k, vector = sch.split(k, [None, lanes])
        w, wi = sch.split(w, [None, step])
        sch.reorder(k, w, h, wi, vector)
        sch.tensorize(h, output_transform(step, lanes))
        if copy is not None:
            transpose(sch, copy, at_once * step, lanes)
        yi, middle, innermost = sch.get_loops(output)[-3:]
        sch.unroll(yi)
        if in_blocks:
            sch.unroll(middle)
        sch.vectorize(innermost)
        if isinstance(workload.width, int):
            sch.annotate(column, "pragma_loop_partition_hint", True)  # only the last tiles of a row test where it ends
        return sch


template = Winograd()
