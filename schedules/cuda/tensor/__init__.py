"""Convolution on the tensor cores of NVIDIA GPUs: float16, bfloat16, int8, and float32 by products of TF32 numbers.

A block computes a tile of pixels of all images by output channels. Asynchronous copies bring chunks of the reduction
into a ring in shared memory, with the elements that each pixel reads under a tap, or padding; tensor cores multiply
them, and the sums stay in registers. There the epilogue is computed, except with a residual; the tile goes through
shared memory to whole lines of the output. Where the tiles are too few for the GPU, blocks share the reduction: those
of a cluster read each other's sums in shared memory, else a second kernel adds up.

On sm_90 warps may have roles instead, where the channels under a tap are whole steps of a product: a block stays on its
multiprocessor, one thread has the copy engine bring the chunks of tile after tile, and one or two teams of warps
multiply, each a different tile, and store it meanwhile: see `tvmconv.lowering.gpu.specialization`. There sums of four
bytes go to the output from registers, also those of parts of a reduction, which a second kernel adds up. The rows of
`wgmma`'s product are pixels, or output channels, so that tiles may have any multiple of eight pixels.

While one chunk is multiplied `num_stages - 1` chunks are on their way, and one fewer where a product continues during
the next one. One barrier a chunk says that it has come, and that all threads are done with the one to be overwritten.

Blocks that share a reduction are a cluster where they are two, and mostly write their sums for a second kernel where
they are more: in a CUDA graph that takes less time than clusters of four or eight, which have room on 120 of an H100's
132 multiprocessors, where pairs have room on all (cuOccupancyMaxActiveClusters).

The channels of a chunk are contiguous in memory. Operands whose channels are not, or too few for whole copies, are
first copied by separate kernels. Without whole copies a row of a window in all channels is copied to where the channels
of a tap would be, as im2win has it: a 7x7 kernel of 3 channels then has 7 taps of 21 channels, not 49 of 3, each with
padding.

A product of float32 numbers is one of rounded TF32 numbers with the precision "tf32", and three of both halves of each
number with "float32"; the product of the lesser halves, 2^-22 of it, is left out. Tensor cores round sums toward zero:
each chunk of three products has separate sums, which float32 units add up. Infinities may become NaN there, and numbers
below 1e-34 lose bits, so that "strict" is left to other templates.

On an H100 the layers of the im2win thesis with whole chunks of channels reach 386 to 728 TFLOP/s in float16 at batch
128; all twelve, of which `cuda/shallow` has the four of three channels, take cuDNN 1.57 times as long in the geometric
mean (benchmarks/tensor-h100-batch-128-float16.json). In float32 it is 2.75 times at batch 1 on an H200
(benchmarks/tensor-h200-batch-1.json).

The schedule is a complete one for ordinary CUDA code, which its serial twin runs. Its annotations name the functions
that replace parts of it: see `tvmconv.lowering.gpu.intrinsics`. A serial twin copies at once and needs no barriers:
`tests/emulated/gpu.py` runs all threads of a lowered kernel step by step, and fails where no barrier parts two accesses
in conflict; warps with roles are tested by `tests/lowering/test_specialization.py`, and on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, ClassVar

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute.tensor.chunks import image_elements, packed_elements
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import DTYPES
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import has_clusters, tensor_instructions
from tvmconv.targets.devices import Gpu, gpu_of

from ...space import Space, named, wasted
from ...template import Layouts
from ..gemm.tiles import VECTOR
from ..machine import BLOCK_BYTES
from ..model import Counts
from ..template import GpuTemplate, Tests, resident_blocks, tensor_core_obstacle
from .constraints import max_registers, needed_registers, rules, rules_of
from .counts import counts_of
from .default import REDUCTION_SPLITS, even_tiles, few_blocks, fitted, tiles_of
from .schedule import schedule_convolution
from .tiles import (
    MAX_STAGES,
    Config,
    block_chunks,
    blocks,
    fragments,
    may_have_channel_rows,
    shared_bytes,
    tf32_products,
)

OTHER_REGISTERS = 64
"""The registers of a thread besides sums and factors that compilers take where they are not short of registers."""


class Tensor(GpuTemplate[Config]):
    """Dense convolution on tensor cores, in all types."""

    LAYOUTS = Layouts(
        x=("NHWC", "NCHW", "NCHWc"),
        w=("KRSC", "KCRS"),
        output=("NHWC", "NCHW", "NCHWc"),
        dtypes=DTYPES,
        strided_output=("NHWC",),
    )
    OPEN_SIZES: tuple[str, ...] = ("batch", "height", "width")
    LEAST = Config(block_m=16, block_n=8, warps_m=1, warps_n=1, num_stages=2)
    examples: ClassVar[tuple[Problem, ...]] = (
        Problem(ConvWorkload.conv2d((2, 7, 9, 64), (64, 3, 3, 64), layout="NHWC", dtype="float16", residual=True)),
        Problem(ConvWorkload.conv2d((1, 3, 15, 16), (32, 3, 7, 7), stride=2, shift=True)),
        Problem(ConvWorkload.conv2d((2, 10, 6, 7), (64, 5, 5, 5), groups=2), precision="tf32"),
        Problem(ConvWorkload.conv2d((1, 48, 8, 9), (64, 24, 3, 3), groups=2, dtype="int8", out_dtype="uint8")),
        Problem(
            ConvWorkload.conv2d((1, 12, 9, 40), (32, 3, 3, 40), layout="NHWC", dtype="bfloat16"), open_sizes=OPEN_SIZES
        ),
    )

    REDUCTION_SPLITS: Sequence[tuple[int, bool]] = REDUCTION_SPLITS
    """The values of `split_k` and `in_cluster` that a default is chosen from."""

    EXCHANGED = False
    """True if the first factor is the weight, which may be a constant."""

    def product_of(self, problem: Problem) -> Problem:
        """Return the problem that is multiplied for a problem of the template: here the problem itself."""
        return problem

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take convolutions on GPUs with tensor cores, except where infinities have to be kept.

        The output channels of a group have to fill whole stores. In blocks of channels each block has to be a group.
        """
        problem = self.product_of(problem)
        workload = problem.workload
        if not problem.is_dense:
            return "is for dense convolutions"
        if (found := tensor_core_obstacle(problem, target)) is not None:
            return found
        if workload.multiplier % VECTOR:
            where = " of a group" if workload.groups > 1 else ""
            return f"takes output channels{where} in multiples of {VECTOR}, not {workload.multiplier}"
        for name, block, group in (
            ("layout", workload.x_layout.block, workload.w_shape[1]),
            ("out_layout", workload.output_layout.block, workload.multiplier),
        ):
            if block not in (1, group):
                return f"takes blocks of the {group} channels of a group, not the {name} {getattr(workload, name)}"
        if max(image_elements(workload), 2 * packed_elements(workload)) >= 2**31:  # what TVM cannot count in 32 bits
            return "takes operands of fewer than 2^31 elements, as it lays them out"
        return None

    def takes_strided_rows(self, config: Config) -> bool:
        """Return whether operands may lie in larger tensors, which the copy engine does not support."""
        return not config.teams

    def registers(self, problem: Problem, config: Config) -> int:
        return needed_registers(self.product_of(problem), config)

    def max_registers(self, problem: Problem, config: Config) -> int:
        return max_registers(config)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(self.product_of(problem), config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(self.product_of(problem).workload, config)

    def rules(self, problem: Problem) -> Tests[Config]:
        return rules(self.product_of(problem))

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[Config]:
        """Return the tests that a configuration must pass, by name.

        Unlike those of other templates some are of the target's features, and several blocks share its shared memory.
        """
        gpu = gpu_of(target)

        def shared_memory(config: Config) -> bool:
            room = gpu.shared_bytes // config.min_blocks_per_sm
            return self.shared_bytes(problem, config) + BLOCK_BYTES <= room

        return {**rules_of(target), **super().constraints(problem, target), **named(shared_memory)}

    def candidates(self, problem: Problem, target: tvm.target.Target) -> list[Config]:
        """Return tiles fitted to the GPU: of equal cost those with more copies ahead first, then with more blocks."""
        tiles = fitted(
            tiles_of(self.product_of(problem)), self.product_of(problem), target, self.EXCHANGED, self.REDUCTION_SPLITS
        )
        preferred = sorted(tiles, key=lambda config: (-config.num_stages, -config.min_blocks_per_sm))
        return [self.Config(**vars(config)) for config in preferred]

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        """Return the values of each knob in the space, on a GPU that has all instructions."""
        product = self.product_of(problem)
        return {
            "block_m": tuple(sorted({default.block_m, 32, 64, 128, 192, 256})),
            "block_n": tuple(sorted({default.block_n, 16, 32, 64, 96, 128, 192, 256})),
            "warps_m": (1, 2, 3, 4),
            "warps_n": (1, 2, 3, 4),
            "num_stages": (2, 3, 4, 5, MAX_STAGES),
            "split_k": (1, 2, 4, 8),
            "wgmma": (False, True),
            "min_blocks_per_sm": (1, 2),
            "in_cluster": (False, True),
            "teams": (0, 1, 2),
            "channel_rows": (False, True) if may_have_channel_rows(product) and not self.EXCHANGED else (False,),
            "rounds_input": (False, True) if tf32_products(product) == 1 else (False,),
        }

    def heuristics(self, problem: Problem) -> Tests[Config]:
        def large_warp_tiles(config: Config) -> bool:
            """Return whether a warp, or a group of four, has at least 1024 sums: those of 64 rows of 16 columns."""
            return config.block_m * config.block_n >= 1024 * config.warps_m * config.warps_n

        return named(large_warp_tiles)

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[Config]:
        """Return the configurations that are worth a trial on this target.

        Unlike those of other templates the values of knobs, and a heuristic, depend on the target's features.
        """
        space, product, gpu = super().space(problem, target), self.product_of(problem), gpu_of(target)

        def whole_gpu(config: Config) -> bool:
            return config.split_k == 1 or few_blocks(product, config, gpu)

        absent = set() if "wgmma" in tensor_instructions(target) else {"wgmma", "teams", "channel_rows", "rounds_input"}
        if not has_clusters(target):
            absent.add("in_cluster")
        knobs = {name: values[:1] if name in absent else values for name, values in space.knobs.items()}
        even = {each.block_m for each in even_tiles(product, target, self.EXCHANGED)}
        knobs["block_m"] = tuple(sorted({*knobs["block_m"], *even}))
        return replace(space, knobs=knobs, heuristics={**named(whole_gpu), **space.heuristics})

    def resident_blocks(self, problem: Problem, config: Config, gpu: Gpu) -> int:
        """Return the blocks that a multiprocessor has room for, with registers that compilers are not short of.

        Where warps have roles it is the number of tiles at work: one for each team, and one whose chunks are being
        copied.
        """
        if config.teams:
            return config.teams + 1
        product = self.product_of(problem)
        needed = config.sums + fragments(product, config) + OTHER_REGISTERS
        return resident_blocks(gpu, config.threads, needed, shared_bytes(product, config))

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        resident = self.resident_blocks(problem, config, gpu_of(target))
        return counts_of(self.product_of(problem), config, target, resident, self.EXCHANGED)

    def sizes(self, problem: Problem, config: Config) -> dict[str, float]:
        product = self.product_of(problem)
        workload = product.workload
        pixels = workload.batch * prod(workload.output_size)
        return {
            "sums": config.sums,
            "chunks": block_chunks(workload, config),
            "shared_bytes": shared_bytes(product, config),
            "waste_m": wasted(pixels, config.block_m),
            "waste_n": wasted(workload.multiplier, config.block_n),
            "pixels": pixels,
            "channels": workload.out_channels,
        }

    def ablations(self, config: Config) -> dict[str, Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        return {
            "copies ahead": replace(config, num_stages=self.LEAST.num_stages + config.wgmma),
            "shared reduction": replace(config, split_k=1, in_cluster=False),
            "tiles of several warps": replace(
                config,
                block_m=32,
                block_n=32,
                warps_m=1,
                warps_n=1,
                wgmma=False,
                teams=0,
                rounds_input=False,
                channel_rows=False,
            ),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        """Schedule the computation; the config must be legal for the problem."""
        return schedule_convolution(self.product_of(problem), config, target, self.EXCHANGED)


template = Tensor()
