"""Linear layers of few rows on CUDA, and 1x1 convolutions of images of one pixel: at the speed of memory.

A weight is read once, as it lies and in its own type, by loads of 16 bytes: the threads along a sum read neighbouring
vectors of an output's weights, `ahead` of them before they use the first one. Each adds up its terms in registers, for
all rows of x; shuffles between the threads, and shared memory where they are several warps, add up theirs.
"""

from __future__ import annotations

import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV

from tvmconv import compute
from tvmconv.compute.annotations import MIN_BLOCKS
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import DTYPES
from tvmconv.targets.devices import gpu_of

from ...template import Layouts
from ..gemm.schedule import begin
from .model import (
    LEAST,
    Config,
    ablations,
    default_config,
    estimate,
    features,
    obstacle,
    resident_blocks,
    space,
    vector,
)

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

LAYOUTS = Layouts(x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=DTYPES)

OPEN_SIZES: tuple[str, ...] = ()


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the workload's computation; the config must be legal."""
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

    # Step 2. Threads along a sum bring theirs together, and as many as there are outputs finish one each
    sch.compute_at(product, block, preserve_unit_loops=True)
    sch.compute_at(parts, block, preserve_unit_loops=True)
    sch.set_scope(product, 0, "shared")
    n, k, lane = sch.get_loops(product)[-3:]
    sch.reorder(k, n, lane)
    _bind_threads(sch, k, lane)
    _, row, lane = sch.split(sch.fuse(*others, ki), [None, config.rows, config.lanes])
    _bind_threads(sch, row, lane)
    # Without this compilers spare registers for as many warps as there is room for, and load few vectors ahead.
    sch.annotate(row, MIN_BLOCKS, resident_blocks(workload, config, gpu_of(target)))

    # Step 3. A thread adds up its terms in registers
    sch.set_scope(parts, 0, "local")
    n, k, lane, chunk, step, element = sch.get_loops(parts)[-6:]
    sch.reorder(k, lane, chunk, step, n, element)
    _bind_threads(sch, k, lane)
    for loop in (step, n, element):
        sch.unroll(loop)

    # Step 4. All vectors of a chunk are on their way before the first one is used
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
