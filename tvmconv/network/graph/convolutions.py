"""Descriptions of a model's convolutions, in words and as workloads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import tvm
from tvm import relax
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute import with_sizes
from tvmconv.compute.substitution import evaluated
from tvmconv.problem import ASSUMED_BATCH
from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload, has_many_filters

from .constants import sizes_of, static_shape
from .graph import operator_name
from .layers import Convolution

OPERATORS = tuple(f"relax.nn.conv{rank}d{kind}" for kind in ("", "_transpose") for rank in (1, 2, 3))

LAYOUTS = {"conv1d": ("NCW", "OIW", "NCW"), "conv2d": ("NCHW", "OIHW", "NCHW")}
"""The layouts of data, weight and output that a workload can describe, for each kind of convolution."""

TRANSPOSED_LAYOUTS = {"conv1d_transpose": ("NCW", "IOW", "NCW"), "conv2d_transpose": ("NCHW", "IOHW", "NCHW")}
"""The layouts of data, weight and output of those transposed convolutions that plain convolutions can compute."""


def is_convolution(expr: relax.Expr) -> bool:
    """Return whether an expression is a convolution of Relax, of any rank, transposed or not."""
    return operator_name(expr) in OPERATORS


def is_linear(expr: relax.Expr) -> bool:
    """Return whether an expression multiplies x (N, C) by a weight (C, K), which a workload can describe."""
    if operator_name(expr) != "relax.matmul":
        return False
    x, w = (argument.ty for argument in expr.args)
    rows, weight = sizes_of(x), static_shape(w)
    is_known = x.ndim == w.ndim == 2 and rows is not None and isinstance(x.shape[1], tvm.tirx.IntImm)
    has_elements = weight is not None and 0 not in (*weight, *(rows or ()))
    return is_known and has_elements and x.dtype == w.dtype == expr.ty.dtype


def describe_linear(name: str, call: relax.Call, assumed: Assumed, dtype: str | None = None) -> Convolution:
    """Describe a linear layer as the convolution that it is, with kernels and images of one element.

    Its rows are counted by the assumed sizes of the model. `dtype` is the type of x where that is not the one in the
    call.
    """
    x, (channels, outputs) = call.args[0].ty, static_shape(call.args[1].ty) or ()
    rows, _ = sizes_of(x) or ()
    if not isinstance(rows, int):
        rows = max(1, evaluated(rows, {var: assumed.get(var, ASSUMED_BATCH) for var in undefined_vars(rows)}))
    workload = ConvWorkload.conv2d((rows, channels, 1, 1), (outputs, channels, 1, 1), dtype=dtype or str(x.dtype))
    return Convolution(name, described(workload, x), "NC", workload.flops, workload, None, tuple(open_sizes(x)))


GIVE_SIZES = "give it as `shapes` (--input-shapes)"
"""The way to get a kernel for a convolution with too many open sizes, in words."""

ASSUMED_SIDE = 224
"""The height or width of a model's images that kernels are chosen for where it is known only when the model runs.

The length of its sequences is assumed to be the same; their positions are the rows of linear layers.
"""

MAX_ASSUMED = 2**20
"""The size from which a model's input is assumed to be no larger."""

Assumed = Mapping[tvm.tirx.Var, int]
"""The values that sizes of a model's inputs are taken for where they are known only when the model runs."""


def assumed_sizes(mod: tvm.IRModule) -> dict[tvm.tirx.Var, int]:
    """Return the values that a model's open sizes are taken for: those of first axes as batches, all others as sides.

    Before: `def main(x: R.Tensor((n, length, 64)))`. After: `{n: ASSUMED_BATCH, length: ASSUMED_SIDE}`.
    """
    found: dict[tvm.tirx.Var, int] = {}
    for parameter in mod["main"].params:
        for axis, size in enumerate(sizes_of(parameter.ty) or ()):
            for var in [] if isinstance(size, int) else undefined_vars(size):
                found[var] = max(ASSUMED_SIDE if axis else ASSUMED_BATCH, found.get(var, 0))
    return found


def open_sizes(x: relax.TensorType) -> dict[str, tvm.tirx.PrimExpr]:
    """Return the sizes of a convolution that are known only when the model runs, by their names in its workload."""
    names = ("batch", "channels", "height", "width")[: x.ndim] if x.ndim != 3 else ("batch", "channels", "width")
    return {name: size for name, size in zip(names, sizes_of(x) or (), strict=True) if not isinstance(size, int)}


def described(workload: ConvWorkload, x: relax.TensorType) -> str:
    """Return a workload in words, with the sizes of x that are known only when the model runs."""
    return size_text(with_sizes(workload, open_sizes(x)))


def redescribed(convolution: Convolution, workload: ConvWorkload, x: relax.TensorType) -> Convolution:
    """Return the description of a convolution of x with another workload."""
    return replace(convolution, description=described(workload, x), workload=workload)


def _assumed_shape(x: relax.TensorType, least: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of a tensor, with assumed values for those that are known only when the model runs.

    A size may be an expression of the sizes of the model's inputs, such as half of a height. These are assumed to be
    larger than `ASSUMED_SIDE` where a side would be below its `least` size: 896 samples for a window of 320, not 224.
    """

    def assumed(size: int | tvm.tirx.PrimExpr, usual: int, least: int) -> int:
        if isinstance(size, int):
            return size
        found = evaluated(size, dict.fromkeys(undefined_vars(size), usual))
        return assumed(size, 4 * usual, least) if found < least and usual < MAX_ASSUMED else found

    batch, channels, *sides = sizes_of(x) or ()
    first = [assumed(batch, ASSUMED_BATCH, 0), assumed(channels, ASSUMED_SIDE, 0)]
    return (*first, *(assumed(size, ASSUMED_SIDE, fitting) for size, fitting in zip(sides, least, strict=True)))


def describe(name: str, call: relax.Call, dtype: str | None = None) -> Convolution:
    """Describe the convolution that a call of Relax computes, without anything that precedes or follows it.

    `dtype` is the type of x where that is not the one in the call.
    """
    workload, obstacle = None, _form_obstacle(call)
    is_too_open = obstacle is None and _is_too_open(call)
    if is_too_open:
        shape = shape_text(call.args[0].ty)
        obstacle = f"the shape {shape} is known only when the model runs; {GIVE_SIZES}"
    elif obstacle is None:
        try:
            workload = _workload(call, dtype)
        except InvalidArgumentError as error:
            obstacle = str(error)
    return Convolution(
        name=name,
        description=described(workload, call.args[0].ty) if workload else _words(call),
        layout=str(call.attrs.data_layout),
        flops=workload.flops if workload else _flops(call),
        workload=workload,
        obstacle=obstacle,
        open_sizes=tuple(open_sizes(call.args[0].ty)) if workload else (),
        is_too_open=is_too_open,
    )


def _form_obstacle(call: relax.Call) -> str | None:
    """Return the reason why a ConvWorkload cannot describe the call, whatever its sizes; None if it can."""
    attrs, (x, w) = call.attrs, (argument.ty for argument in call.args)
    kind = call.op.name.removeprefix("relax.nn.")
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if kind in TRANSPOSED_LAYOUTS:
        return transposed_obstacle(call) or "its weight is computed when the model runs"
    if kind not in LAYOUTS:
        return f"{kind} is not supported"
    if layouts != LAYOUTS[kind]:
        return f"layout {' '.join(dict.fromkeys(layouts))} is not supported"
    if not x.dtype == w.dtype == call.ty.dtype:
        return f"{x.dtype} with {w.dtype} into {call.ty.dtype} is not supported"
    return None


def transposed_obstacle(call: relax.Call) -> str | None:
    """Return the reason why no convolution can compute a transposed one, whatever its weight; None if one can."""
    attrs, (x, w) = call.attrs, (argument.ty for argument in call.args)
    kind = call.op.name.removeprefix("relax.nn.")
    layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
    if layouts != TRANSPOSED_LAYOUTS[kind]:
        return f"layout {' '.join(dict.fromkeys(layouts))} is not supported"
    if not x.dtype == w.dtype == call.ty.dtype or str(x.dtype) not in FLOATS:
        return f"{x.dtype} with {w.dtype} into {call.ty.dtype} is not supported"
    if 0 in (sizes_of(x) or ()):
        return f"the shape {shape_text(x)} has no elements"
    if _is_too_open(call):
        return f"the shape {shape_text(x)}, or that of its weight, is known only when the model runs"
    return None


def _is_too_open(call: relax.Call) -> bool:
    """Return whether other sizes of a convolution than `OPEN_SIZES` are known only when the model runs."""
    x, w = (argument.ty for argument in call.args)
    return sizes_of(x) is None or "channels" in open_sizes(x) or static_shape(w) is None


def _workload(call: relax.Call, dtype: str | None) -> ConvWorkload:
    """Return the workload of a call; a convolution with one spatial axis gets a first one of size 1."""
    attrs, (x, w) = call.attrs, (argument.ty for argument in call.args)
    out_channels, _, *kernel = static_shape(w) or ()
    padding, dilation = ([int(n) for n in each] for each in (attrs.padding, attrs.dilation))
    before, after = padding[: len(kernel)], padding[len(kernel) :]
    sums = zip(kernel, dilation, before, after, strict=True)
    batch, channels, *size = _assumed_shape(x, [(k - 1) * d + 1 - front - back for k, d, front, back in sums])
    if dtype is None and str(x.dtype) not in FLOATS:  # Relax's integers have sums of their own type
        raise InvalidArgumentError("dtype", str(x.dtype), one_of(FLOATS))

    def pair(values: Sequence[int], missing: int) -> tuple[int, int]:
        first, second = (missing, *values)[-2:]
        return int(first), int(second)

    height, width = pair(size, 1)
    sides, strides = pair(kernel, 1), pair(attrs.strides, 1)
    return ConvWorkload(
        batch=batch,
        in_channels=channels,
        height=height,
        width=width,
        out_channels=out_channels,
        kernel=sides,
        stride=strides,
        padding=(*pair(before, 0), *pair(after, 0)),
        dilation=pair(dilation, 1),
        groups=int(attrs.groups),
        dense=has_many_filters(out_channels, sides, strides),
        dtype=dtype or str(x.dtype),
    )


def _flops(call: relax.Call) -> int | None:
    """Return the operations of a convolution, two for each multiply-add; None where a shape is known only at run time.

    Each output takes as many multiply-adds as a filter has elements; in a transposed convolution each input does.
    """
    transposed = call.op.name.endswith("_transpose")
    outputs, weight = static_shape(call.args[0].ty if transposed else call.ty), static_shape(call.args[1].ty)
    if outputs is None or weight is None:
        return None
    filters = weight[str(call.attrs.kernel_layout).index("I" if transposed else "O")]
    return 2 * prod(outputs) * prod(weight) // filters


def _words(call: relax.Call) -> str:
    """Describe a call, as in "conv2d NHWC 1x14x14x8 float32, weight HWIO 3x3x8x16, stride 1x1, padding 0,0,0,0"."""
    attrs, (x, w) = call.attrs, (argument.ty for argument in call.args)
    text = f"{call.op.name.removeprefix('relax.nn.')} {attrs.data_layout} {shape_text(x)} {x.dtype}"
    text += f", weight {attrs.kernel_layout} {shape_text(w)}, stride {'x'.join(map(str, attrs.strides))}"
    text += f", padding {','.join(map(str, attrs.padding))}"
    return text + (f", groups {attrs.groups}" if attrs.groups > 1 else "")


def shape_text(ty: relax.TensorType) -> str:
    """Return the shape of a tensor's type in words, such as "1x14x14x8"."""
    return "x".join(map(size_text, ty.shape)) if isinstance(ty.shape, relax.ShapeExpr) else f"of rank {ty.ndim}"


def size_text(size: tvm.ir.PrimExpr) -> str:
    """Return a size as TVM prints it, without the types of its numbers: "N - 2" for "N - T.int64(2)"."""
    return re.sub(r"T\.int64\((-?\d+)\)", r"\1", str(size))
