"""Winograd's convolution on the tensor cores of NVIDIA GPUs: 3x3 and 5x5 kernels in float32 with fewer multiplications.

A kernel transforms the tiles of the input, the kernel of `cuda/tensor` multiplies them by the transformed weight, as a
1x1 convolution with a group for each of the points, and a third kernel transforms the sums to tiles of 4x4 outputs
and finishes them. Kernels of 3x3 have 36 points, and a quarter of the products of the direct convolution; those of 5x5
have 64, and 4/25 of its products. But the transformed tensors, of 2.25 and 4 times the elements of input and output
each, go through memory.

On an H100 512 channels to 512 take 1.37 ms at batch 128 of 28x28, where `cuda/tensor` takes 3.43, and 256 to 256 of
56x56 1.88 for 3.50: 345 and 252 TFLOP/s of the direct convolution, of which three products of TF32 numbers reach 138.
5x5 of 96 to 256, of 24x24 without padding, takes 0.26 for 0.53, at 242. (The weight is transformed ahead.)

Threads of the transforms have neighbouring vectors of channels, and a whole tile in registers: 36 points of four
channels, or 64 of two. An input in NCHW is first copied to NHWC, by a separate kernel, as `cuda/tensor` does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import NamedTuple

import msgspec
import tvm
from tvm.s_tir import Schedule
from tvm.s_tir.schedule import LoopRV, SBlockRV

from tvmconv import compute
from tvmconv.compute.tensor.chunks import lays_out_input
from tvmconv.compute.tensor.winograd import OUTPUTS, side_of, transformed_elements, winograd_product
from tvmconv.problem import Problem
from tvmconv.problem.workload import MAX_ELEMENTS, ConvWorkload
from tvmconv.targets import arch_of, tensor_instructions

from ...space import Space, named, wasted
from ...template import Layouts
from ..gemm.schedule import begin, bind_to_grid
from ..gemm.tiles import VECTOR
from ..machine import SECTOR
from ..model import Counts
from ..template import Tests
from . import Tensor, tiles
from .counts import image_bytes
from .schedule import finish_stores, lay_out_image, schedule_product

THREADS = 128
"""The threads of a block that transforms tiles."""


class Size(NamedTuple):
    """Minimum channel count, rounding of products and vector length of transforms for one kernel size."""

    fewest_channels: int
    """The least input channels. Transforms round as much for few channels as for many, but sums of few products have to
    be more exact. For normal numbers the root mean square of errors is 2.3 times that of fused multiply-adds for 3x3,
    and 2.5 for 5x5, for those behind a ReLU 2.7 and 2.8, and for positive ones 0.4 and 0.2 times; at the corners of
    padded images, where sums are of fewer products, 2.7 and behind a ReLU 3.2 for 5x5. In 16 channels it would be 3.3
    times for 3x3. (Those of 5x5 and of 16 channels were measured on an H100, the others computed by a model of the
    tensor core that is within 7% of what was measured.)"""
    nearest: bool
    """True if products round their first factor to the nearest TF32 number: see `intrinsics.product_function`. That
    is for `wgmma`: `mma` adds rests to sums that are large already, and would be 3.5 times as inexact behind a ReLU."""
    lanes: int
    """The number of neighbouring channels of a thread in a transform: the more, the longer vectors it moves, and the
    more registers a tile takes, 144 or 128 of 255. For 5x5 one and four are up to 3% slower on an H100."""


SIZES = {3: Size(32, nearest=False, lanes=VECTOR), 5: Size(96, nearest=True, lanes=2)}
"""The sizes of kernels, by their taps along each axis."""

MAX_BYTES = 3 * 2**30
"""The most bytes that a call takes beside its operands: the transformed input and the sums, the weight where it is not
transformed ahead, and an input in NCHW once more. At batch 128 of 56x56 256 channels to 256 take 1.85 GB, and 512 to
256 take 2.77. Of larger ones most have large images for their channels and gain little: 128 to 128 of 112x112 would be
1.1 times as fast, for 3.7 GB.
"""

WEIGHTS = 3
"""The number of copies of a transformed weight: whole, and as two TF32 numbers that add up to each of its numbers."""


@dataclass(frozen=True)
class Config(tiles.Config):
    """The knobs of `cuda/tensor`, for the product of transformed tiles."""


class Product(Tensor):
    """The product of transformed tiles by `cuda/tensor`, without the transforms of Winograd's convolution."""

    def product_of(self, problem: Problem) -> Problem:
        return product_of(problem)

    def rules(self, problem: Problem) -> Tests[tiles.Config]:
        size = _size(problem)

        def nearest(config: tiles.Config) -> bool:
            return config.wgmma or not size.nearest

        return {**named(nearest), **super().rules(problem)}


PRODUCT = Product()


class Winograd(Product):
    """Winograd's convolution on tensor cores, in float32."""

    LAYOUTS = Layouts(
        x=("NHWC", "NCHW"), w=("KRSC", "KCRS"), output=("NHWC", "NCHW"), dtypes=("float32",), strided_output=("NHWC",)
    )
    OPEN_SIZES: tuple[str, ...] = ()
    LEAST = Config(**vars(Tensor.LEAST))
    examples = (
        Problem(ConvWorkload.conv2d((3, 13, 11, 36), (36, 3, 3, 36), layout="NHWC", residual=True, activation="silu")),
        Problem(ConvWorkload.conv2d((1, 32, 6, 30), (24, 32, 3, 3), padding=(2, 0, 1, 3)), precision="tf32"),
        Problem(ConvWorkload.conv2d((1, 96, 6, 13), (24, 96, 5, 5), padding=(1, 2, 0, 3), scale=True)),
    )
    REDUCTION_SPLITS = ((1, False),)

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take 3x3 and 5x5 convolutions of one group with a stride of 1, where errors may spread to outputs nearby.

        Channels are in whole vectors, and those of the input as many as make sums as exact as the precision promises.
        """
        workload = problem.workload
        if not problem.is_dense or workload.groups > 1:
            return "is for dense convolutions in one group"
        taps, across = workload.kernel
        if taps != across or taps not in SIZES or workload.stride != (1, 1) or workload.dilation != (1, 1):
            return "takes 3x3 and 5x5 kernels with a stride and a dilation of 1"
        if problem.precision == "strict":
            return "has errors that depend on outputs nearby, which precision strict rules out"
        for kind, channels in (("input", workload.in_channels), ("output", workload.out_channels)):
            if channels % VECTOR:
                return f"takes {kind} channels in multiples of {VECTOR}, not {channels}"
        if workload.in_channels < (fewest := SIZES[taps].fewest_channels):
            return f"takes {fewest} input channels or more for {taps}x{taps} kernels, not {workload.in_channels}"
        points, weight_points, sums = transformed_elements(workload)
        if weight_points > MAX_ELEMENTS:
            return f"takes weights of at most {MAX_ELEMENTS} elements when they are transformed, not of {weight_points}"
        weights = 0 if problem.constant_weight else WEIGHTS * weight_points
        image = prod(workload.x_shape) if lays_out_input(workload) else 0
        if (beside := (image + points + sums + weights) * workload.itemsize) > MAX_BYTES:
            return f"takes up to {MAX_BYTES} bytes of transformed operands and sums, not {beside}"
        if SIZES[taps].nearest and "wgmma" not in tensor_instructions(target):
            return f"needs a GPU with wgmma, sm_90, for {taps}x{taps} kernels, not {arch_of(target)}"
        return super().obstacle(problem, target)

    def rules(self, problem: Problem) -> Tests[tiles.Config]:
        def whole_sums(config: tiles.Config) -> bool:
            return config.split_k == 1

        return {**named(whole_sums), **super().rules(problem)}

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[tiles.Config]:
        """Return the configurations that are worth a trial on this target.

        Unlike those of other templates the values of knobs, and the bound of what is promising, are those of another
        default: the product's, which may share reductions.
        """
        product_space = PRODUCT.space(problem, target)
        default, constraints = self.default_config(problem, target), self.constraints(problem, target)
        knobs = {**product_space.knobs, "split_k": (1,), "in_cluster": (False,)}
        return replace(product_space, default=default, least=self.LEAST, knobs=knobs, constraints=constraints)

    def counts(self, problem: Problem, config: tiles.Config, target: tvm.target.Target) -> Counts:
        """Return the work of the product, and of the kernels that transform operands and sums.

        Of an output in NCHW each run counts as the sectors that it is in.
        """
        workload, product = problem.workload, super().counts(problem, config, target)
        points, weight_points, sums = transformed_elements(workload)
        outputs = prod(workload.output_shape) * (2 if workload.epilogue.residual else 1)
        if workload.out_layout == "NCHW":
            outputs = int(outputs * wasted(workload.itemsize * _run(problem), SECTOR))
        moved, kernels = prod(workload.x_shape) + points + sums + outputs, 2
        if not problem.constant_weight:
            moved, kernels = moved + prod(workload.w_shape) + weight_points, kernels + 1
        beside = product.beside + moved * workload.itemsize
        if lays_out_input(workload):
            beside, kernels = beside + image_bytes(workload), kernels + 1
        return replace(product, kernels=product.kernels + kernels, beside=beside)

    def sizes(self, problem: Problem, config: tiles.Config) -> dict[str, float]:
        return {**super().sizes(problem, config), "outputs": prod(problem.workload.output_shape)}

    def ablations(self, config: tiles.Config) -> dict[str, tiles.Config]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        without = super().ablations(config)
        del without["shared reduction"]
        return {name: each for name, each in without.items() if each.wgmma == config.wgmma}

    def schedule(self, problem: Problem, config: tiles.Config, target: tvm.target.Target) -> Schedule:
        """Schedule the computation; the config must be legal for the problem."""
        # Step 1. The products of the points, each of which has its sums behind those of the point before
        product, workload = product_of(problem), problem.workload
        side, size = side_of(workload), _size(problem)
        weight_parts = tiles.weight_split(product, config)
        form = compute.TensorForm(weight_parts=weight_parts, by_tap=config.teams > 0)
        sch = begin(compute.tensor_winograd(workload, tiles.tile_of(product, config), form), problem)
        sch.transform_layout(sch.get_sblock("sums"), ("write", 0), lambda part, t, p, k: [part, p, t, k])
        schedule_product(sch, product, config, target, size.nearest)

        # Step 2. The input's tiles, after the copy of an input in NCHW to NHWC
        if lays_out_input(workload):
            lay_out_image(sch, problem)
        points = sch.get_sblock("points")
        image, p, row, t, c = sch.get_loops(points)
        (p, q), (c, lane) = sch.split(p, [side, side]), sch.split(c, [None, size.lanes])
        sch.reorder(image, row, t, c, p, q, lane)
        thread = bind_to_grid(sch, [image, row, t, c], THREADS)
        _in_registers(sch, thread, *(sch.get_sblock(name) for name in ("window_rows", "windows")))
        _unroll(sch, points)

        # Step 3. The weight's, whose taps a thread reads first
        points = sch.get_sblock("weight_points")
        sch.compute_inline(sch.get_sblock("taps"))
        p, q, k, c = sch.get_loops(points)
        c, lane = sch.split(c, [None, 1])
        sch.reorder(k, c, p, q, lane)
        thread = bind_to_grid(sch, [k, c], THREADS)
        rows = sch.get_sblock("weight_rows")
        _in_registers(sch, thread, rows, sch.cache_read(rows, 0, "local"))
        _unroll(sch, points)

        # Step 4. The outputs' tiles, from sums that a thread reads first, and the epilogue
        output, planes, rows = (sch.get_sblock(name) for name in ("output", "planes", "sum_rows"))
        n, k, h, v = workload.output_layout.logical(*sch.get_loops(output))
        h, i = sch.split(h, [None, OUTPUTS])
        v, j = sch.split(v, [None, OUTPUTS])
        k, lane = sch.split(k, [None, size.lanes])
        inner_loops = (i, j, lane) if workload.out_layout == "NHWC" else (i, lane, j)
        sch.reorder(n, h, v, k, *inner_loops)
        thread = bind_to_grid(sch, [n, h, v, k], THREADS)
        sch.set_scope(planes, 0, "local")
        sch.compute_at(planes, thread, preserve_unit_loops=True)
        *_, k, h, v = sch.get_loops(planes)
        sch.reorder(h, v, k)
        _unroll(sch, planes)
        _in_registers(sch, thread, rows, sch.cache_read(rows, 0, "local"))
        _unroll(sch, output, whole=_run(problem) > 1)

        finish_stores(sch, product, config)
        return sch


@lru_cache(maxsize=64)  # constraints and estimates ask for each of thousands of configurations
def product_of(problem: Problem) -> Problem:
    """Return the problem, for `cuda/tensor`, of the product of transformed tiles.

    Its precision is that of three products of TF32 numbers for the precision "tf32", too: single ones of transformed
    numbers would have larger errors than that promises.
    """
    return msgspec.structs.replace(problem, workload=winograd_product(problem.workload), precision="float32")


def _size(problem: Problem) -> Size:
    return SIZES[problem.workload.kernel[0]]


def _run(problem: Problem) -> int:
    """Return the number of outputs that a thread stores at once: in NCHW those of a row, if rows are whole tiles."""
    workload = problem.workload
    if workload.out_layout == "NHWC":
        return _size(problem).lanes
    return OUTPUTS if workload.output_size[1] % OUTPUTS == 0 else 1


def _in_registers(sch: Schedule, thread: LoopRV, *stages: SBlockRV) -> None:
    """Compute stages, each of which is read by the one before it, in the registers of a thread."""
    for stage in stages:
        sch.set_scope(stage, 0, "local")
        sch.compute_at(stage, thread, preserve_unit_loops=True)
        _unroll(sch, stage)


def _unroll(sch: Schedule, stage: SBlockRV, whole: bool = True) -> None:
    """Unroll the loops of a thread, and vectorize the last one if it is over the lanes of a whole vector.

    The last loop is longer than a vector where a weight of 5x5 taps is in KCRS.
    """
    _, _, *loops, lane = sch.get_loops(stage)
    for loop in loops:
        sch.unroll(loop)
    if whole and int(sch.get(lane).extent) <= VECTOR:
        sch.vectorize(lane)
    else:
        sch.unroll(lane)


template = Winograd()
