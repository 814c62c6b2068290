"""Linear layers of few rows on CUDA, and 1x1 convolutions of images of one pixel: at the speed of memory.

A weight is read once, in its layout and type, by loads of 16 bytes: the threads along a sum read neighbouring vectors
of an output's weights, `ahead` of them before they use the first one. Each adds up its terms in registers, for all rows
of x; shuffles between the threads, and shared memory where they are several warps, add up the sums of threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import gcd
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.annotations import MIN_BLOCKS
from tvmconv.compute.tensor.chunks import COPY_BYTES
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import DTYPES
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, gpu_of

from ...space import ceil_div, ceil_to, named, wasted
from ...template import Layouts
from ..gemm.schedule import begin
from ..machine import LINE
from ..model import Counts, memory_bytes
from ..template import GpuTemplate, Tests, several_warps

MAX_ROWS = 4
"""The most rows of x: a thread has them all, and with more of them tensor cores multiply as fast as memory reads."""

WARPS, ROWS, AHEAD = (1, 2, 4, 8), (1, 2, 4, 8, 16), (1, 2, 3, 4, 5, 6, 7, 8)
"""The values of the knobs that are worth a trial."""

MAX_THREADS = 256
"""The most threads of a block in a default: those of larger ones wait for each other longer."""

BEGINNING, FINISHING = 60.0, 40.0
"""The instructions that a thread begins with, and those for each sum: shuffles, and its share of the epilogue."""

OTHER_REGISTERS = 16
"""The registers of a thread beside vectors and sums, which NVRTC takes for sm_90."""

REGISTER_UNIT = 8
"""The registers of a thread are a multiple of this number: `ptxas` spills those that are more than the last
multiple."""


@dataclass(frozen=True)
class Config:
    """The knobs. A block computes `rows` output channels, for all rows of x."""

    warps: int
    """The number of warps along a sum."""
    rows: int
    """The number of output channels of a block, which are computed by different threads."""
    ahead: int
    """The number of vectors of a weight that a thread loads before it uses the first one."""

    @property
    def lanes(self) -> int:
        """The number of threads along a sum."""
        return self.warps * WARP

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def vector(workload: ConvWorkload) -> int:
    """Return the number of elements that a thread loads at once: at most 16 bytes, and a divisor of the channels."""
    return gcd(COPY_BYTES // workload.itemsize, workload.in_channels)


def registers_of(workload: ConvWorkload, config: Config) -> int:
    """Return the registers of a thread, rounded up: for vectors of the weight and of each row of x, and sums."""
    words = ceil_div(vector(workload) * workload.itemsize, 4)
    return ceil_to(config.ahead * words * (1 + workload.batch) + workload.batch + OTHER_REGISTERS, REGISTER_UNIT)


def shared_bytes(workload: ConvWorkload, config: Config) -> int:
    """Return the bytes of shared memory of a block: its sums, and, if several warps share a sum, each one's part."""
    sums = config.rows * workload.batch
    return 4 * (sums + (config.warps * sums + config.rows if config.warps > 1 else 0))


def chunks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of times that a thread waits for vectors."""
    return ceil_div(workload.in_channels // vector(workload), config.lanes * config.ahead)


def blocks(workload: ConvWorkload, config: Config) -> int:
    """Return the number of blocks of the grid."""
    return ceil_div(workload.out_channels, config.rows)


def issued_by(workload: ConvWorkload, config: Config) -> float:
    """Return the instructions of a warp."""
    size, converted = vector(workload), workload.dtype != workload.storage.sums
    steps, products = chunks(workload, config) * config.ahead, workload.batch * size
    if steps * config.lanes * size > workload.in_channels:  # each product is tested for being past the last term
        products *= 3
    loading = (1 + workload.batch) * (1 + size * converted) + products
    return steps * loading + BEGINNING + workload.batch * FINISHING


class Matvec(GpuTemplate[Config]):
    """Linear layers of few rows on CUDA, bound by memory."""

    LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=DTYPES)
    LEAST = Config(warps=1, rows=1, ahead=1)
    examples = (
        Problem(
            ConvWorkload.conv2d((2, 1000, 1, 1), (9, 1000, 1, 1), dtype="float16", residual=True, activation="relu")
        ),
        Problem(ConvWorkload.conv2d((1, 77, 1, 1), (20, 77, 1, 1), scale=True), precision="strict"),
        Problem(ConvWorkload.conv2d((4, 1, 1, 312), (13, 1, 1, 312), layout="NHWC", dtype="bfloat16", shift=True)),
        Problem(ConvWorkload.conv2d((3, 528, 1, 1), (9, 528, 1, 1), dtype="uint8", x_zero_point=120, out_dtype="int8")),
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take linear layers of few rows: 1x1 convolutions of few images of one pixel."""
        workload = problem.workload
        if not problem.is_dense or workload.groups > 1:
            return "is for dense convolutions in one group"
        if not workload.is_linear:
            return "takes 1x1 kernels on images of one pixel, without padding"
        if workload.batch > MAX_ROWS:
            return f"takes up to {MAX_ROWS} images, not {workload.batch}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return registers_of(problem.workload, config)

    def blocks(self, problem: Problem, config: Config) -> int:
        return blocks(problem.workload, config)

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return shared_bytes(problem.workload, config)

    def rules(self, problem: Problem) -> Tests[Config]:
        def powers_of_two(config: Config) -> bool:
            """Return whether TVM can halve the warps along a sum again and again, until one sum is left."""
            return config.warps & (config.warps - 1) == 0

        return named(powers_of_two)

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        tried = (Config(warps, rows, ahead) for warps, rows, ahead in product(WARPS, ROWS, AHEAD))
        return (config for config in tried if config.threads <= MAX_THREADS)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return {"warps": WARPS, "rows": ROWS, "ahead": AHEAD}

    def heuristics(self, problem: Problem) -> Tests[Config]:
        return named(several_warps)

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        workload, warps = problem.workload, config.threads // WARP
        rounds, issued = chunks(workload, config), issued_by(workload, config)
        row = workload.in_channels * workload.itemsize
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=config.rows * row,
            accessed=config.rows * (1 + workload.batch) * row / LINE,
            arrivals=rounds + (config.warps > 1),
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        workload = problem.workload
        return {
            "chunks": chunks(workload, config),
            "waste_terms": wasted(workload.in_channels // vector(workload), config.lanes * config.ahead),
            "waste_rows": wasted(workload.out_channels, config.rows),
            "terms": workload.in_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {
            "loads ahead": replace(config, ahead=1),
            "several outputs": replace(config, rows=1),
            "several warps along a sum": replace(config, warps=1),
        }

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        # Step 0. The computation, rounded up to whole tiles
        workload = problem.workload
        sch = begin(compute.matvec(workload, vector(workload), config.lanes, config.ahead, config.rows), problem)
        names = ("pixels", "weights", "parts", "product", "planes", "output")
        pixels, weights, parts, product, planes, output = (sch.get_sblock(name) for name in names)
        sch.compute_inline(planes)

        # Step 1. Blocks of output channels
        loops = sch.get_loops(output)
        k = loops[workload.output_layout.order.index(1)]
        others = [loop for loop in loops if loop is not k]
        block, ki = sch.split(k, [None, config.rows])
        sch.reorder(block, *others, ki)
        sch.bind(block, "blockIdx.x")

        # Step 2. The threads along a sum add up their parts, and then one thread for each output finishes it
        sch.compute_at(product, block, preserve_unit_loops=True)
        sch.compute_at(parts, block, preserve_unit_loops=True)
        sch.set_scope(product, 0, "shared")
        n, k, lane = sch.get_loops(product)[-3:]
        sch.reorder(k, n, lane)
        _bind_threads(sch, k, lane)
        _, row, lane = sch.split(sch.fuse(*others, ki), [None, config.rows, config.lanes])
        _bind_threads(sch, row, lane)
        # Without this compilers spare registers for as many warps as there is room for, and load few vectors ahead.
        sch.annotate(row, MIN_BLOCKS, self.resident_blocks(problem, config, gpu_of(target)))

        # Step 3. A thread adds up its terms in registers
        sch.set_scope(parts, 0, "local")
        n, k, lane, chunk, step, element = sch.get_loops(parts)[-6:]
        sch.reorder(k, lane, chunk, step, n, element)
        _bind_threads(sch, k, lane)
        for loop in (step, n, element):
            sch.unroll(loop)

        # Step 4. All vectors of a chunk are in flight before the first one is used
        for stage in (pixels, weights):
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
            sch.set_scope(stage, 0, "local")
            *_, which, step, _, element = sch.get_loops(stage)
            sch.unroll(which)
            sch.unroll(step)
            sch.vectorize(element)
        init = sch.decompose_reduction(parts, chunk)
        sch.unroll(sch.get_loops(init)[-1])
        return sch


def _bind_threads(sch: Schedule, row: LoopRV, lane: LoopRV) -> None:
    sch.bind(row, "threadIdx.y")
    sch.bind(lane, "threadIdx.x")


template = Matvec()
