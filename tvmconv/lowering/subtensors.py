"""Scheduled functions that read and write their operands inside larger tensors, without copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple, TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion

from tvmconv.compute.substitution import CHOICE
from tvmconv.problem.layout import StridedRows

from .signatures import with_alignment


class Span(NamedTuple):
    """The position of a tensor in one that is longer along an axis."""

    axis: int
    """The axis, counted from the first one."""
    size: int
    """The size of the larger tensor along the axis."""
    first: int
    """The index along the axis in the larger tensor where the smaller one begins."""

    def shape(self, smaller: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape of the larger tensor, given that of the smaller one."""
        return (*smaller[: self.axis], self.size, *smaller[self.axis + 1 :])

    def indices_in_larger(self, shape: Sequence[Any], indices: Sequence[Any]) -> tuple[list[Any], None]:
        """Return the indices of an element in the larger tensor, and None: there is no test that it has to pass."""
        return [index + self.first if axis == self.axis else index for axis, index in enumerate(indices)], None


class Interleaved(NamedTuple):
    """The position of a tensor (N, H, W, row phases * column phases * channels) in one of (N, rows, columns, width)."""

    plane: tuple[int, int]
    """The height and the width of the smaller tensor."""
    phases: tuple[int, int]
    """The numbers of rows and of columns that each of its pixels becomes."""
    channels: Span
    """The position of the channels of a phase in the last dimension."""

    def shape(self, smaller: Sequence[Any]) -> tuple[Any, ...]:
        """Return the shape of the larger tensor, given that of the smaller one."""
        rows, columns = (size * count for size, count in zip(self.plane, self.phases, strict=True))
        return smaller[0], rows, columns, self.channels.size

    def indices_in_larger(self, shape: Sequence[Any], indices: Sequence[Any]) -> tuple[list[Any], None]:
        """Return the indices of an element in the larger tensor, its row counted over all images, and None: no test."""
        (height, width), (rows, columns), channels = self.plane, self.phases, int(shape[3]) // prod(self.phases)
        n, h, w, depth = indices
        pixel = (n * height + h) * width + w  # some templates take all pixels as one row
        row, column = pixel // width * rows + depth // (channels * columns), depth // channels % columns
        column += pixel % width * columns
        return [tirx.const(0, row.ty.dtype), row, column, depth % channels + self.channels.first], None


Subtensor: TypeAlias = Span | Interleaved | StridedRows
"""The position of an operand in a larger tensor."""


def with_subtensors(
    func: tirx.PrimFunc, subtensors: Mapping[str, Subtensor], target: tvm.target.Target
) -> tirx.PrimFunc:
    """Return a scheduled function in which some parameters, by name, are the larger tensors that they lie in.

    Before: `x: T.Buffer((1, 6, 197, 1, 64))`, `x[0, g, p, 0, c]`. After: `x: T.Buffer((226944,))`,
    `x[384 + p * 1152 + c + g * 64]`.
    """
    names = {param: param.name for param in func.params}
    fresh = {
        param: tirx.decl_buffer(subtensor.shape(param.ty.shape), param.ty.dtype, param.name)
        for param in func.params
        if (subtensor := subtensors.get(param.name)) is not None
    }

    def located(old: Any, indices: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the indices of an element in the larger tensor, and the test that it is there, or None."""
        return subtensors[names[old]].indices_in_larger(old.ty.shape, indices)

    def loaded(load: TensorLoad) -> Any:
        if load.source not in fresh:
            return load
        at, test = located(load.source, load.indices)
        value = fresh[load.source][tuple(at)]
        return value if test is None else tirx.if_then_else(test, value, tirx.const(0, load.ty.dtype))

    def chosen(call: tvm.ir.Call) -> tvm.ir.Call:
        """Return a choice inside a choice, with one alternative in common, as a single choice, as copies expect it."""
        if not call.op.same_as(CHOICE) or not isinstance(inner := call.args[1], tvm.ir.Call):
            return call
        if not inner.op.same_as(CHOICE) or not tvm_ffi.structural_equal(call.args[2], inner.args[2]):
            return call
        return tirx.if_then_else(tirx.all(call.args[0], inner.args[0]), inner.args[1], inner.args[2])

    def stored(store: tirx.BufferStore) -> tirx.BufferStore:
        if store.buffer not in fresh:
            return store
        return tirx.BufferStore(fresh[store.buffer], store.value, located(store.buffer, store.indices)[0])

    def covered(region: TensorRegion) -> TensorRegion:
        """Return the region of the larger tensor: the whole tensor, except for a `Span`."""
        new = fresh.get(region.source)
        if new is None:
            return region
        firsts, extents = [tirx.const(0, "int32")] * len(new.ty.shape), list(new.ty.shape)
        if isinstance(subtensors[names[region.source]], Span):
            firsts, _ = located(region.source, [each.min for each in region.region])
            extents = [each.extent for each in region.region]
        return TensorRegion(new, list(map(tvm.ir.Range.from_min_extent, firsts, extents)), region.ty)

    body = tvm_ffi.structural_map(
        func.body,
        [(tirx.BufferStore, stored), (TensorLoad, loaded), (tvm.ir.Call, chosen), (TensorRegion, covered)],
    )
    params = [fresh.get(param, param) for param in func.params]
    return with_alignment(tirx.PrimFunc(params, body, func.ret_type, attrs=func.attrs), target)
