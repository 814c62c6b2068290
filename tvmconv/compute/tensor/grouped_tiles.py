"""Convolution in narrow groups for tensor cores: each warp computes pixels of one group.

A block reads a tile of the input, with what its windows reach beyond it, into shared memory once: the channels of a
group that a pixel reads under a tap are there as the rows of a matrix of tensor cores are. So a sum has the terms of
its group alone, and infinities and NaN of one group stay in it. Two groups of 4 channels are one unit, whose weight is
zero between one group's outputs and the other's channels, and whose sums leave out the other group's terms as well.
"""

from __future__ import annotations

from math import prod

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import in_tiles, whole_tiles

LANES = 8
"""The channels of a vector: 16 bytes in half precision, a row of a matrix of tensor cores."""

EIGHT = 8
"""The number of rows of a matrix of tensor cores: pixels of a line."""


def unit_groups(workload: ConvWorkload) -> int:
    """Return the number of groups that share a vector of channels, of which a unit is made."""
    return max(1, LANES // workload.w_shape[1])


def unit_inputs(workload: ConvWorkload) -> int:
    """Return the number of input channels of a unit: whole vectors."""
    return unit_groups(workload) * workload.w_shape[1]


def unit_outputs(workload: ConvWorkload) -> int:
    """Return the number of output channels of a unit."""
    return unit_groups(workload) * workload.multiplier


def units(workload: ConvWorkload) -> int:
    """Return the number of units."""
    return workload.groups // unit_groups(workload)


def lays_out_group_weight(workload: ConvWorkload) -> bool:
    """Return whether the weight is first copied: with zeros between groups, or to KRSC, which a 1x1 one has."""
    return unit_groups(workload) > 1 or (workload.w_layout != "KRSC" and prod(workload.kernel) > 1)


def strip(workload: ConvWorkload, columns: int) -> int:
    """Return the number of input columns between neighbouring rows of a matrix, for tiles of `columns` pixels."""
    return columns // EIGHT * workload.stride[1]


def grouped_tiles(workload: ConvWorkload, tile: tuple[int, int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pixels", "weights", "product", "sums" and "output".

    Returns x in NHWC and w in the workload's layouts, the epilogue's operands, and the output in NHWC. `tile` is the
    rows and columns of pixels of a tile, and its units. "pixels" has the input as tiles read it, with zeros around it,
    its columns in strips: (N, row tiles, column tiles, rows, strips, columns of a strip, vectors of channels, elements
    of a vector). "weights" are those of a unit's outputs, (units, outputs, vectors of all taps, elements). It reads w,
    or where `lays_out_group_weight` is true a stage "packed" of (K, R, S, channels of a unit), with zeros between an
    output and the channels of another group. "product" has the sums of tiles, (N, row tiles, column tiles, rows,
    columns, units, outputs of a unit). Units are rounded up to whole tiles as well.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(*workload.operands["w"], name="w")
    operands, (rows, columns, across) = epilogue_operands(workload), tile
    count = in_tiles(units(workload), across)
    pixels, weights = _pixels(x, workload, tile), _weights(w, workload, count)
    shared, outputs, vectors = unit_groups(workload), unit_outputs(workload), unit_inputs(workload) // LANES
    (sh, sw), (dh, dw), (kernel_y, kernel_x) = workload.stride, workload.dilation, workload.kernel
    sums, width = workload.storage.sums, strip(workload, columns)
    r, s, vector, lane = (
        te.reduce_axis((0, extent), name=name)
        for name, extent in (("r", kernel_y), ("s", kernel_x), ("vector", vectors), ("lane", LANES))
    )

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        *which, h, v, unit, k = axes
        column = v * sw + s * dw
        index = *which, h * sh + r * dh, column // width, column % width, unit * vectors + vector, lane
        weight = weights[unit, k, (r * kernel_x + s) * vectors + vector, lane]
        term = pixels[index].astype(sums) * weight.astype(sums)
        if shared > 1:
            in_group = k // workload.multiplier == lane // workload.w_shape[1]
            term = tirx.Select(in_group, term, tirx.const(0, sums))
        return te.sum(term, axis=[r, s, vector, lane])

    shape = (*pixels.shape[:3], rows, columns, count, outputs)
    product = te.compute(shape, accumulate, name="product")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        return product[n, h // rows, v // columns, h % rows, v % columns, k // outputs, k % outputs]

    planes = te.compute((workload.batch, workload.out_channels, *workload.output_size), gather, name="sums")
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]


def _pixels(x: te.Tensor, workload: ConvWorkload, tile: tuple[int, int, int]) -> te.Tensor:
    """Return the stage "pixels" of `grouped_tiles`."""
    (rows, columns, across), (sh, sw), (top, left, _, _) = tile, workload.stride, workload.padding
    count, zero, vectors = in_tiles(units(workload), across), tirx.const(0, x.dtype), unit_inputs(workload) // LANES
    width = strip(workload, columns)
    tiles = [whole_tiles(size, step) for size, step in zip(workload.output_size, (rows, columns), strict=True)]

    def element(*axes: tirx.Var) -> tirx.PrimExpr:
        n, y, xs, row, which, within, vector, lane = axes
        column = which * width + within
        h, v, channel = y * (rows * sh) + row - top, xs * (columns * sw) + column - left, vector * LANES + lane
        inside = [h >= 0, h < workload.height, v >= 0, v < workload.width]
        inside += [] if count == units(workload) else [channel < workload.in_channels]
        return tirx.if_then_else(tirx.all(*inside), x[n, h, v, channel], zero)

    lines, read = workload.read_by((rows, columns))
    shape = (workload.batch, *tiles, lines, whole_tiles(read, width), width, count * vectors, LANES)
    return te.compute(shape, element, name="pixels")


def _weights(w: te.Tensor, workload: ConvWorkload, count: int) -> te.Tensor:
    """Return the stage "weights" with `count` units, after "packed" if there is one."""
    inputs, outputs, group_channels = unit_inputs(workload), unit_outputs(workload), workload.w_shape[1]
    vectors, columns, zero = inputs // LANES, workload.kernel[1], tirx.const(0, w.dtype)

    def laid_out(k: tirx.Var, r: tirx.Var, s: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        value = w[workload.weight_layout.memory_index(k, c % group_channels, r, s)]
        in_group = k // workload.multiplier % unit_groups(workload) == c // group_channels
        return value if inputs == group_channels else tirx.if_then_else(in_group, value, zero)

    packed = None
    if lays_out_group_weight(workload):
        packed = te.compute((workload.out_channels, *workload.kernel, inputs), laid_out, name="packed")

    def weight(unit: tirx.Var, column: tirx.Var, vector: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        k, tap, channel = unit * outputs + column, vector // vectors, vector % vectors * LANES + lane
        r, s = tap // columns, tap % columns
        value = w[workload.weight_layout.memory_index(k, channel, r, s)] if packed is None else packed[k, r, s, channel]
        return value if count == units(workload) else tirx.if_then_else(unit < units(workload), value, zero)

    return te.compute((count, outputs, prod(workload.kernel) * vectors, LANES), weight, name="weights")
