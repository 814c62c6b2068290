"""Random problems of the templates of GPUs and CPUs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

import msgspec
import tvm

from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for
from tvmconv.problem import DIRECTIONS, FORWARD, Problem, Workload, problem_of
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.fused.attention import Attention
from tvmconv.problem.fused.gate import Gate
from tvmconv.problem.layout import StridedRows
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of, computes_with


@dataclass(frozen=True)
class Size:
    """The limits of a problem's size."""

    max_bytes: int
    """The most bytes of its operands."""
    max_flops: int
    """The most floating-point operations; a problem in float32 without TF32 has an eighth of them at most."""


LARGE, SMALL = Size(2**27, 2**36), Size(2**25, 2**32)
"""The sizes that a laboratory measures on a GPU, and those of a calibration and of CPUs, which take less time."""

LEAST_BYTES = 2**18
"""The least bytes of the operands of a problem."""

MAX_NONZEROS = 2**15
"""The most non-zeros of a weight that is compiled in: kernels with more take half a minute to compile."""

TURNS = 20_000
"""The most draws for a problem."""


@dataclass(frozen=True)
class Usual:
    """The usual batches, types and layouts of (x, output) of a kind of machine, repeated by how often they are drawn.

    "int8", which some workloads cannot have, is the last type.
    """

    batches: tuple[int, ...]
    dtypes: tuple[str, ...]
    layouts: tuple[tuple[str, str], ...]


NCHW, NHWC, BLOCKS = ("NCHW", "NCHW"), ("NHWC", "NHWC"), ("NCHW16c", "NCHW16c")

ON_GPU = Usual((1, 1, 8, 32, 32, 128), (*3 * ["float32"], *3 * ["float16"], "bfloat16", "int8"), (NHWC, NCHW))

ON_CPU = Usual(
    (1, 1, 1, 1, 2, 8),
    (*5 * ["float32"], "float16", "bfloat16", "int8"),
    (NCHW, NCHW, *4 * [BLOCKS], ("NCHW", "NCHW16c"), ("NCHW16c", "NCHW")),
)


def convolution(
    draw: Draw, usual: Usual, inputs: int, outputs: int, kernel: int, max_side: int, groups: int = 1
) -> ConvWorkload:
    """Return a convolution of a number of channels of each group, with random planes, stride, type and layouts."""
    dtype, (layout, out_layout) = draw.of(usual.dtypes), draw.of(usual.layouts)
    height = draw.logarithmic(min(4, max_side), max_side)
    width = height if draw.chance(2 / 3) else draw.logarithmic(min(4, max_side), max_side)
    workload = ConvWorkload.conv2d(
        (draw.of(usual.batches), groups * inputs, height, width),
        (groups * outputs, inputs, kernel, kernel),
        stride=2 if draw.chance(1 / 4) else 1,
        dilation=2 if kernel > 1 and draw.chance(1 / 10) else 1,
        groups=groups,
        dtype=dtype,
        shift=True,
        scale=dtype == "int8",
        activation="relu",
        out_dtype=dtype,
    )
    w_layout = "KRSC" if layout == "NHWC" and not workload.is_depthwise else "KCRS"
    return msgspec.structs.replace(workload, layout=layout, w_layout=w_layout, out_layout=out_layout)


def two_channels(draw: Draw, least: int, limit: int) -> tuple[int, int]:
    """Return two numbers of channels, from 8 * `least` to 8 * `limit`."""
    return 8 * draw.logarithmic(least, limit), 8 * draw.logarithmic(least, limit)


def dense(draw: Draw, usual: Usual) -> ConvWorkload:
    inputs, outputs = two_channels(draw, 2, 128)
    return convolution(draw, usual, inputs, outputs, draw.of((1, 1, 3, 3, 3, 5)), 112)


def square(draw: Draw, usual: Usual) -> ConvWorkload:
    """Return a 3x3 convolution."""
    inputs, outputs = two_channels(draw, 4, 64)
    return convolution(draw, usual, inputs, outputs, 3, 112)


def pointwise(draw: Draw, usual: Usual) -> ConvWorkload:
    inputs, outputs = two_channels(draw, 2, 64)
    return convolution(draw, usual, inputs, outputs, 1, 112)


def linear(draw: Draw, usual: Usual) -> ConvWorkload:
    inputs, outputs = two_channels(draw, 8, 512)
    workload = convolution(draw, usual, inputs, outputs, 1, 1)
    return msgspec.structs.replace(workload, batch=draw.of((1, 1, 2, 4, 8, 32, 128, 1024, 4096)))


def shallow(draw: Draw, usual: Usual) -> ConvWorkload:
    return convolution(
        draw, usual, draw.of((1, 2, 3, 3, 3, 4)), 4 * draw.logarithmic(2, 24), draw.of((3, 3, 5, 7, 7)), 256
    )


def grouped(draw: Draw, usual: Usual) -> ConvWorkload:
    groups, channels = draw.of((2, 4, 8, 16, 32)), draw.of((4, 8, 8, 16, 16, 24, 32, 64))
    return convolution(draw, usual, channels, channels * draw.of((1, 1, 1, 2)), draw.of((1, 3, 3, 3, 5)), 64, groups)


def depthwise(draw: Draw, usual: Usual) -> ConvWorkload:
    kernel = draw.of((3, 3, 3, 5, 5, 7, 7, 9, 13, 21, 31))
    return convolution(draw, usual, 1, 1 if draw.chance(7 / 8) else 2, kernel, 128, 8 * draw.logarithmic(2, 128))


def gradient(draw: Draw, usual: Usual) -> ConvWorkload:
    workload = depthwise(draw, usual)
    if workload.dtype == "int8":
        raise InvalidArgumentError("dtype", "int8", "a type of gradients")
    return msgspec.structs.replace(workload.without_epilogue(), out_dtype=msgspec.UNSET)


def attention(draw: Draw, usual: Usual) -> Workload:
    matrices, depth, dtype = draw.of((8, 12, 16, 96, 384)), draw.of((32, 64, 64, 80, 128)), draw.of(usual.dtypes[:-1])
    queries, keys = (draw.of((49, 50, 64, 197, 256, 577, 1024, 2048)) for _ in range(2))
    keys = queries if draw.chance(3 / 4) else keys
    q, k, v, output = (StridedRows.whole_tensor(matrices, count, depth) for count in (queries, keys, keys, queries))
    return Attention(matrices, depth, depth, dtype, dtype, depth**-0.5, q, k, v, output)


def gate(draw: Draw, usual: Usual) -> Workload:
    batch, channels, dtype = draw.of((1, 1, 8, 32, 128)), 8 * draw.logarithmic(4, 256), draw.of(usual.dtypes[:-1])
    squeezed = max(4, channels // draw.of((4, 8, 16, 24)))
    layers = ((channels, squeezed, "silu"), (squeezed, channels, "sigmoid"))
    return Gate(
        *(
            ConvWorkload.conv2d(
                (batch, inputs, 1, 1), (outputs, inputs, 1, 1), dtype=dtype, shift=True, activation=function
            )
            for inputs, outputs, function in layers
        )
    )


KINDS: dict[str, Callable[[Draw, Usual], Workload]] = {
    "attention": attention,
    "gate": gate,
    "grouped": grouped,
    "linear": linear,
    "matvec": linear,
    "pointwise": pointwise,
    "shallow": shallow,
    "winograd": square,
    **dict.fromkeys(("depthwise", "depthwise_bands", "depthwise_dot", "depthwise_nhwc", "depthwise_planes"), depthwise),
    **dict.fromkeys(("amx", "direct", "dot", "im2win", "sparse", "tensor"), dense),
}
"""The function that draws workloads for each template; gradients draw by `gradient`."""


def random_problem(draw: Draw, algorithm: str, target: tvm.target.Target, size: Size) -> Problem | None:
    """Return a problem that an algorithm takes; None where none of many draws is one."""
    on_gpu = backend_of(target).on_gpu
    usual = ON_GPU if on_gpu else ON_CPU
    for _ in range(TURNS):
        try:
            workload = KINDS.get(algorithm, gradient)(draw, usual)
        except InvalidArgumentError:
            continue
        if not computes_with(target, STORAGE_TYPES[workload.dtype]):
            continue
        direction = FORWARD if algorithm in KINDS else draw.of(DIRECTIONS[1:])
        sparsity = 1 - draw.of((0.05, 0.1, 0.2, 0.5)) if algorithm == "sparse" else None
        word = (
            "tf32" if workload.dtype == "float32" and on_gpu and draw.chance(1 / 2) and sparsity is None else "float32"
        )
        if sparsity is not None:
            assert isinstance(workload, ConvWorkload)
            if workload.dtype == "int8" or workload.layout == "NHWC":
                continue
            workload = workload.without_scale()
            if prod(workload.w_shape) * (1 - sparsity) > MAX_NONZEROS:
                continue
        if workload.flops > size.max_flops / (8 if workload.dtype == "float32" and word != "tf32" else 1):
            continue
        moved = sum(prod(shape) * STORAGE_TYPES[dtype].itemsize for shape, dtype in workload.operands.values())
        if not LEAST_BYTES <= moved <= size.max_bytes:
            continue
        problem = problem_of(workload, sparsity, word, direction)
        if problem.is_gradient:
            problem = problem.as_convolution
        if algorithm in algorithms_for(problem, target):
            return problem
    return None
