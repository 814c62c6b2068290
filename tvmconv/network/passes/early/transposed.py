"""Transposed convolutions as convolutions: one set of filters for each phase of the output, then depth to space.

Output o of a transposed convolution of stride s is the sum over taps r of w[r] * x[(o + padding - r * dilation) / s],
where that is a whole number. Outputs with the same remainder by s are a phase. They use the same taps at the same
distances: so a phase is a convolution of stride 1, and all phases together are one with s times the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd, prod

import numpy as np
import tvm
from tvm import relax

from ...graph.constants import Array, constant_value, sizes_of, static_shape
from ...graph.convolutions import ASSUMED_SIDE, transposed_obstacle
from ...graph.graph import Block, blocks_of, calls, free_variables, rebind
from ...graph.interleaving import Interleaving
from ...sites.batch_norm import scale_and_shift
from ...sites.epilogue import channel_vector
from ...sites.integers import in_int8
from ...sites.quantized import quantized_constant
from ..convolutions.layouts import BY_ELEMENT, is_scalar


def spread_transposed(mod: tvm.IRModule) -> tvm.IRModule:
    """Return the module with transposed convolutions of constant weights replaced by convolutions.

    The operators that follow by channel or by element, such as bias, batch norm and activation, are applied to the
    phases, where a kernel's epilogue takes them in. A phase with fewer taps than others multiplies zeros.

    Before: `y = R.nn.conv2d_transpose(x, w, strides=[2, 2])`, `z = R.add(y, bias)`.
    After: `y = R.nn.conv2d(x, phases)` of four times the channels, `t = R.add(y, bias of each)`, and z is t with the
    phases of its channels as neighbouring rows and columns, by two reshapes around a permutation of axes.
    """
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        for var, value in block.values.items():
            if calls(value, "nn.conv1d_transpose", "nn.conv2d_transpose") and transposed_obstacle(value) is None:
                values |= _spread(var, value, block)
    return rebind(mod, values) if values else mod


@dataclass(frozen=True)
class Axis:
    """A spatial axis of a transposed convolution, as an axis of the convolution that computes its phases."""

    first: int
    """The number of phases' outputs that are cut off in front."""
    taps: Array
    """The taps that each phase multiplies, (phases, taps of a phase's filter); -1 is a zero."""
    dilation: int
    padding_before: int
    """The padding in front."""
    planes: int
    """The number of outputs of each phase less the number of inputs."""

    @property
    def padding_after(self) -> int:
        """The padding behind."""
        return self.planes + (len(self.taps[0]) - 1) * self.dilation - self.padding_before


def axis_of(kernel: int, stride: int, dilation: int, padding: tuple[int, int], more: int, size: int) -> Axis:
    """Return the axis for inputs of a size, with the cut in front (`first`) that needs the fewest multiplications."""
    outputs = (kernel - 1) * dilation + 1 - sum(padding) + more  # beyond `stride * (size - 1)`

    def with_cut(first: int) -> Axis:
        taps_at = {
            (phase, (phase - first + padding[0] - tap * dilation) // stride): tap
            for tap in range(kernel)
            for phase in range(stride)
            if (phase - first + padding[0] - tap * dilation) % stride == 0
        }
        offsets = [offset for _, offset in taps_at]
        least = min(offsets)
        step = gcd(*(offset - least for offset in offsets)) or 1
        taps = np.full((stride, (max(offsets) - least) // step + 1), -1)
        for (phase, offset), tap in taps_at.items():
            taps[phase, (offset - least) // step] = tap
        return Axis(first, taps, step, -least, -(-(outputs + first) // stride) - 1)

    return min(map(with_cut, range(stride)), key=lambda axis: axis.taps.shape[1] * (size + axis.planes))


def _spread(var: relax.Var, call: relax.Call, block: Block) -> dict[relax.Var, relax.Expr]:
    """Return new values for a transposed convolution's result and for the operators that are applied to its phases.

    There are none where its weight is computed.
    """
    attrs, (_, _, *sizes) = call.attrs, sizes_of(call.args[0].ty) or ()
    rank, groups = len(sizes), int(attrs.groups)
    padding = [int(each) for each in attrs.padding]
    strides, dilations, more = (
        [int(each) for each in values] for values in (attrs.strides, attrs.dilation, attrs.output_padding)
    )
    kernel = (static_shape(call.args[1].ty) or ())[2:]
    known = [size if isinstance(size, int) else ASSUMED_SIDE for size in sizes]
    paddings = zip(padding[:rank], padding[rank:], strict=True)
    axes = [axis_of(*each) for each in zip(kernel, strides, dilations, paddings, more, known, strict=True)]
    if (filters := _filters(call, partial(_arranged, groups=groups, axes=axes), block)) is None:
        return {}
    convolution = (relax.op.nn.conv1d if rank == 1 else relax.op.nn.conv2d)(
        call.args[0],
        filters,
        padding=[*(axis.padding_before for axis in axes), *(axis.padding_after for axis in axes)],
        dilation=[axis.dilation for axis in axes],
        groups=groups,
    )
    values: dict[relax.Var, relax.Expr] = {var: convolution}
    if (phases := prod(strides)) == 1:
        return values
    computed = _values_of_phases(var, groups, phases, block)
    last = list(computed)[-1] if computed else var
    values |= computed
    shape = sizes_of(last.ty) or ()
    planes = tuple(size + axis.planes for size, axis in zip(sizes, axes, strict=True))
    first = tuple(axis.first for axis in axes)
    values[last] = Interleaving(values[last], groups, tuple(strides), planes, first, shape).expression()
    return values


def _filters(call: relax.Call, arranged: Callable[[Array], Array], block: Block) -> relax.Expr | None:
    """Return the filters of a transposed convolution's phases; None where its weight is computed.

    Integers stay integers if each filter has one scale, and if int8 holds the integers less their zero points.
    """
    weight, dtype = constant_value(call.args[1]), str(call.args[1].ty.dtype)
    if weight is not None:
        return relax.const(arranged(weight), dtype)
    if (quantized := quantized_constant(call.args[1], block.values.get)) is None:
        return None
    integers, scales = in_int8(arranged(quantized.centered)), arranged(quantized.scale)
    scale = scales.max(axis=tuple(range(1, scales.ndim)), keepdims=True)
    if integers is None or ((scales != scale) & (scales != 0)).any():  # a zero has any scale
        return relax.const(arranged(quantized.numbers), dtype)
    scale = np.where(scale == 0, 1, scale).reshape(-1)
    zero_point = relax.const(np.zeros(len(scale)), "int8")
    return relax.op.dequantize(relax.const(integers), relax.const(scale, "float32"), zero_point, 0, dtype)


def _arranged(weight: Array, groups: int, axes: Sequence[Axis]) -> Array:
    """Return the filters (groups * phases * K, C / groups, ...) of all phases of a weight (C, K / groups, ...)."""
    values = np.pad(weight, [(0, 0), (0, 0), *[(0, 1)] * len(axes)])  # tap -1 is 0
    values = values.reshape(groups, -1, *values.shape[1:])
    for number, axis in enumerate(axes):
        values = np.take(values, axis.taps, axis=3 + 2 * number)
    phases, taps = (range(3 + part, values.ndim, 2) for part in (0, 1))
    filters: Array = np.ascontiguousarray(values.transpose(0, *phases, 2, 1, *taps))
    return filters.reshape(-1, values.shape[1], *filters.shape[-len(axes) :])


def _values_of_phases(var: relax.Var, groups: int, phases: int, block: Block) -> dict[relax.Var, relax.Expr]:
    """Return new values, on the phases, of the operators that follow a convolution by channel or by element.

    They end in one variable: nothing else reads the variables before it.
    """
    each_phase = partial(_each_phase, groups=groups, phases=phases)
    found, complete = [var], 0
    values: list[relax.Expr] = []
    for each, value in block.values.items():
        if set(found).isdisjoint(free_variables(value)) or (new := _value_of_phases(value, found, each_phase)) is None:
            continue
        values.append(new)
        if isinstance(each.ty, relax.TensorType) and all(
            block.is_inner(one) and {*found, each} >= set(block.readers(one)) for one in found
        ):
            complete = len(values)
        found.append(each)
    return dict(zip(found[1:], values[:complete], strict=False))


def _each_phase(vector: relax.Expr, groups: int, phases: int) -> relax.Expr:
    """Return a constant that has a number for each channel, with these numbers repeated for each phase."""
    array = constant_value(vector)
    assert array is not None
    parts = array.reshape(groups, 1, -1)
    every = np.broadcast_to(parts, (groups, phases, parts.shape[2]))
    shape = [every.size if size == array.size else 1 for size in array.shape]
    return relax.const(every.reshape(shape), str(vector.ty.dtype))


def _value_of_phases(
    value: relax.Expr, found: Sequence[relax.Var], each_phase: Callable[[relax.Expr], relax.Expr]
) -> relax.Expr | None:
    """Return a value with its constants repeated for each phase; None where it is not by channel or by element.

    `found` are the variables that hold phases.
    """
    if isinstance(value, relax.TupleGetItem):  # the output of a batch norm; its other results are statistics
        return value if value.index == 0 else None
    if scale_and_shift(value) is not None:
        return relax.Call(value.op, [value.args[0], *map(each_phase, value.args[1:])], value.attrs)
    if not calls(value, *BY_ELEMENT) or value.ty.ndim != found[0].ty.ndim:
        return None
    arguments, read = list[relax.Expr](), set(free_variables(value)) & set(found)
    for each in value.args:
        if each in read or not isinstance(each.ty, relax.TensorType) or is_scalar(each):
            arguments.append(each)
        elif any(channel_vector(value.op.name, value, one) is not None for one in read):
            arguments.append(each_phase(each))
        else:
            return None
    return relax.Call(value.op, arguments, value.attrs)
