"""Averages of quantized numbers as sums of integers, over windows or over whole axes."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tvm import relax, te, tirx

from ...graph.constants import static_shape
from ...graph.graph import calls

POOLING = ("nn.adaptive_avg_pool2d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
"""Relax's average pooling; its spatial axes are from the third on, in NCHW as in blocks of channels."""


@dataclass(frozen=True)
class Windows:
    """The windows of an average, by the axes of the tensor that they span."""

    sizes: dict[int, int]
    strides: dict[int, int]
    before: dict[int, int]
    """The padding in front, which counts."""

    @property
    def count(self) -> int:
        """The number of elements in a window."""
        return prod(self.sizes.values())


def windows_of(call: Any) -> Windows | None:
    """Return the windows of an average; None for one whose windows have different numbers of elements."""
    shape = static_shape(call.args[0].ty) or ()
    if calls(call, "mean"):
        axes = sorted(int(axis) % len(shape) for axis in call.attrs.axis or range(len(shape)))
        return Windows({axis: shape[axis] for axis in axes}, {}, {})
    attrs = call.attrs
    if calls(call, "nn.adaptive_avg_pool2d"):
        is_whole = attrs.layout == "NCHW" and [int(size) for size in attrs.output_size or ()] == [1, 1]
        return Windows({2: shape[2], 3: shape[3]}, {2: 1, 3: 1}, {}) if is_whole else None
    sizes, strides, padding = ([int(size) for size in each] for each in (attrs.pool_size, attrs.strides, attrs.padding))
    before, after = padding[: len(sizes)], padding[len(sizes) :]
    if any(int(size) != 1 for size in attrs.dilation) or (any(padding) and not attrs.count_include_pad):
        return None
    output = (static_shape(call.ty) or ())[2:]
    reached = [(count - 1) * stride + size for count, stride, size in zip(output, strides, sizes, strict=False)]
    if any(end > sum(edge) for end, edge in zip(reached, zip(shape[2:], before, after, strict=False), strict=False)):
        return None  # the last windows of a ceiling
    return Windows(*(dict(enumerate(each, start=2)) for each in (sizes, strides, before)))


def integer_sum(x: te.Tensor, windows: Windows, zero_point: int, shape: relax.ShapeExpr) -> te.Tensor:
    """Return the sums of integers in windows in int32; padding is of zero points. The sums have the shape given."""
    reduced = {axis: te.reduce_axis((0, size)) for axis, size in windows.sizes.items()}
    keeps = len(shape) == len(x.shape)

    def total(*place: tirx.Var) -> tirx.PrimExpr:
        outer = iter(place)
        indices, inside = [], []
        for axis, size in enumerate(x.shape):
            if axis not in reduced:
                indices.append(next(outer))
                continue
            index = next(outer) * windows.strides[axis] if windows.strides else next(outer) if keeps else 0
            index = index + reduced[axis] - windows.before.get(axis, 0)
            if windows.before.get(axis, 0) or windows.strides:
                inside += [index >= 0, index < size]
            indices.append(index)
        value = x[tuple(indices)].astype("int32")
        if any(windows.before.values()):
            value = tirx.if_then_else(tirx.all(*inside), value, zero_point)
        return te.sum(value, axis=list(reduced.values()))

    return te.compute(list(shape), total, name="integer_sum")
