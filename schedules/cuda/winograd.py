"""Winograd's convolution on the tensor cores of NVIDIA GPUs: 3x3 kernels in float32 with fewer multiplications.

A kernel transforms the tiles of the input, the kernel of `cuda/tensor` multiplies them by the transformed weight, as a
1x1 convolution with a group for each of the 36 points, and a third kernel transforms the sums to tiles of 4x4 outputs
and finishes them. Products are a quarter of those of the direct convolution; but the transformed tensors, of 2.25 times
the elements of input and output each, go through memory.

Threads of the transforms have neighbouring channels, each those of a vector, and a whole tile in registers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

import msgspec
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.tensor_winograd import OUTPUTS, SIDE, transformed_elements, winograd_product
from tvmconv.compute.winograd_matrices import TAPS
from tvmconv.problem import Problem
from tvmconv.targets.devices import gpu_of
from tvmconv.workload import MAX_ELEMENTS

from ..space import Space, divisors, named
from ..template import Layouts
from . import tensor, tensor_default, tensor_tiles
from .gemm_schedule import begin
from .gemm_tiles import VECTOR
from .tensor_model import FURTHER_KERNEL

VERSION = 1

LAYOUTS = Layouts(x=("NHWC",), w=("KRSC", "KCRS"), output=("NHWC",), dtypes=("float32",))

OPEN_SIZES: tuple[str, ...] = ()

THREADS = 128
"""The threads of a block that transforms tiles."""


@dataclass(frozen=True)
class Config(tensor_tiles.Config):
    """The knobs of `cuda/tensor` for the product of transformed tiles, and one of the transforms."""

    vector: int = 4
    """The channels of a thread that transforms tiles."""


LEAST = Config(**vars(tensor_tiles.LEAST), vector=1)


def product_of(problem: Problem) -> Problem:
    """Return the problem that the product of transformed tiles is for `cuda/tensor`."""
    return msgspec.structs.replace(problem, workload=winograd_product(problem.workload))


def obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Take 3x3 convolutions of one group with a stride of 1, where the precision lets errors spread to outputs nearby.

    With products of single TF32 numbers they would be larger than "tf32" promises. Channels are in whole vectors.
    """
    workload = problem.workload
    if not problem.is_dense or workload.groups > 1:
        return "is for dense convolutions in one group"
    if workload.kernel != (TAPS, TAPS) or workload.stride != (1, 1) or workload.dilation != (1, 1):
        return "takes 3x3 kernels with a stride and a dilation of 1"
    if problem.precision != "float32":
        return f"is for the precision float32, not {problem.precision}"
    for kind, channels in (("input", workload.in_channels), ("output", workload.out_channels)):
        if channels % VECTOR:
            return f"takes {kind} channels in multiples of {VECTOR}, not {channels}"
    if max(transformed_elements(workload)) > MAX_ELEMENTS:
        return f"takes tensors of at most {MAX_ELEMENTS} elements when they are transformed"
    return tensor.obstacle(product_of(problem), target)


def space(problem: Problem, target: tvm.target.Target) -> Space[Config]:
    """Return the configurations that are worth a trial on this target."""
    channels = problem.workload.in_channels, problem.workload.out_channels

    def whole_reduction(config: Config) -> bool:
        return config.split_k == 1

    def whole_vectors(config: Config) -> bool:
        return config.vector <= VECTOR and not any(each % config.vector for each in channels)

    own = tensor.space(product_of(problem), target)
    knobs = {**own.knobs, "split_k": (1,), "in_cluster": (False,), "vector": divisors(VECTOR, VECTOR)}
    constraints = {**named(whole_reduction, whole_vectors), **own.constraints}
    return Space(default_config(problem, target), LEAST, knobs, constraints, own.heuristics, own.promising)


def default_config(problem: Problem, target: tvm.target.Target) -> Config:
    """Return the legal configuration, of a few, that the model finds the fastest."""
    return Config(**vars(tensor_default.default_config(product_of(problem), target, parts=((1, False),))))


def estimate(problem: Problem, config: Config, target: tvm.target.Target) -> float:
    """Return the clocks that the kernels should take: those of the product, and of the bytes that transforms move."""
    workload = problem.workload
    points, weight_points, sums = transformed_elements(workload)
    outputs = prod(workload.output_shape) * (2 if workload.epilogue.residual else 1)
    moved, kernels = prod(workload.x_shape) + points + sums + outputs, 2
    if not problem.constant_weight:
        moved, kernels = moved + prod(workload.w_shape) + weight_points, kernels + 1
    transforms = moved * workload.itemsize / gpu_of(target).bytes_per_clock + kernels * FURTHER_KERNEL
    return tensor.estimate(product_of(problem), config, target) + transforms


def features(problem: Problem, config: Config, target: tvm.target.Target) -> Mapping[str, float]:
    """Return features for a cost model beside the knobs, such that workloads can be compared."""
    return {
        **tensor.features(product_of(problem), config, target),
        "clocks": estimate(problem, config, target),
        "outputs": prod(problem.workload.output_shape),
    }


def ablations(config: Config) -> Mapping[str, tensor_tiles.Config]:
    """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
    others = {name: each for name, each in tensor.ablations(config).items() if name != "shared reduction"}
    return {**others, "vectors": replace(config, vector=1)}


def schedule(problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
    """Schedule the computation; the config must be legal for the problem."""
    # Step 1. The products of the points, each of which has its sums behind those of the point before
    product, workload = product_of(problem), problem.workload
    split = tensor_tiles.weight_split(product, config)
    sch = begin(compute.tensor_winograd(workload, config.tile, split, config.teams > 0), problem)
    sch.transform_layout(sch.get_sblock("sums"), ("write", 0), lambda part, t, p, k: [part, p, t, k])
    tensor.schedule_product(sch, product, config, target)

    # Step 2. The input's tiles
    points = sch.get_sblock("points")
    image, p, row, t, c = sch.get_loops(points)
    (p, q), (c, lane) = sch.split(p, [SIDE, SIDE]), sch.split(c, [None, config.vector])
    sch.reorder(image, row, t, c, p, q, lane)
    thread = _over_threads(sch, [image, row, t, c])
    _in_registers(sch, thread, *(sch.get_sblock(name) for name in ("window_rows", "windows")))
    _unroll(sch, points)

    # Step 3. The weight's, whose taps a thread reads first
    points = sch.get_sblock("weight_points")
    sch.compute_inline(sch.get_sblock("taps"))
    p, q, k, c = sch.get_loops(points)
    c, lane = sch.split(c, [None, 1])
    sch.reorder(k, c, p, q, lane)
    thread = _over_threads(sch, [k, c])
    rows = sch.get_sblock("weight_rows")
    _in_registers(sch, thread, rows, sch.cache_read(rows, 0, "local"))
    _unroll(sch, points)

    # Step 4. The outputs' tiles, of sums that a thread reads first, and the epilogue
    output, rows = sch.get_sblock("output"), sch.get_sblock("sum_rows")
    n, h, v, k = sch.get_loops(output)
    (h, i), (v, j), (k, lane) = (
        sch.split(*each) for each in ((h, [None, OUTPUTS]), (v, [None, OUTPUTS]), (k, [None, config.vector]))
    )
    sch.reorder(n, h, v, k, i, j, lane)
    thread = _over_threads(sch, [n, h, v, k])
    _in_registers(sch, thread, sch.get_sblock("planes"), rows, sch.cache_read(rows, 0, "local"))
    _unroll(sch, output)

    tensor.store_registers(sch, product, config)
    return sch


def _over_threads(sch: Schedule, loops: list[LoopRV]) -> LoopRV:
    """Share loops out over the threads of a kernel; return the loop of threads."""
    block, thread = sch.split(sch.fuse(*loops), [None, THREADS])
    sch.bind(block, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    return thread


def _in_registers(sch: Schedule, thread: LoopRV, *stages: SBlockRV) -> None:
    """Compute stages, the last one first, in the registers of a thread."""
    for stage in stages:
        sch.set_scope(stage, 0, "local")
        sch.compute_at(stage, thread, preserve_unit_loops=True)
        _unroll(sch, stage)


def _unroll(sch: Schedule, stage: SBlockRV) -> None:
    """Unroll the loops of a thread, but for the last one, which is over the lanes of a vector."""
    _, _, *loops, lane = sch.get_loops(stage)
    for loop in loops:
        sch.unroll(loop)
    sch.vectorize(lane)
