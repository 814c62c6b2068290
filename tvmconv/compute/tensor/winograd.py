"""Winograd's convolution for tensor cores: a product of matrices for each point of the transformed tiles.

It is `O = A [sum over c of (G F[k, c] Gt) * (B P[n, c] Bt)] At` for each tile of 4x4 outputs, as in `winograd`. With
3x3 taps it takes 36 multiplications where the direct convolution takes 144, and with 5x5 64 for 400. Of each of the 36
or 64 points the sums over the channels are a product of matrices: that of all tiles, by the transformed weight. So they
are a 1x1 convolution with a group for each point, whose image is the row of all tiles, and whose channels are
contiguous for each group.
"""

from __future__ import annotations

from math import prod

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..dense.winograd import multiplied, transforms
from ..epilogue import epilogue, epilogue_operands
from .chunks import lays_out_input
from .fragments import FragmentTile
from .gemm import TensorForm, tensor_sums

OUTPUTS = 4
"""The number of output rows, and of output columns, of a tile."""


def side_of(workload: ConvWorkload) -> int:
    """Return the number of input rows, and of columns, that a tile reads: its number of points along each axis."""
    return OUTPUTS + workload.kernel[0] - 1


def tiles_of(workload: ConvWorkload) -> tuple[int, int]:
    """Return the number of rows and of columns of tiles in an image, rounded up."""
    rows, columns = (-(-size // OUTPUTS) for size in workload.output_size)
    return rows, columns


def _count(workload: ConvWorkload) -> int:
    """Return the number of tiles of all images."""
    return workload.batch * prod(tiles_of(workload))


def transformed_elements(workload: ConvWorkload) -> tuple[int, int, int]:
    """Return the numbers of elements of the transformed input and weight, and of the sums of their products."""
    count, channels, outputs = _count(workload), workload.in_channels, workload.out_channels
    points = side_of(workload) ** 2
    return points * count * channels, points * outputs * channels, points * count * outputs


def winograd_product(workload: ConvWorkload) -> ConvWorkload:
    """Return the convolution that sums the products of transformed tiles: it has a group for each point."""
    points = side_of(workload) ** 2
    return ConvWorkload(
        batch=1,
        in_channels=points * workload.in_channels,
        height=1,
        width=_count(workload),
        out_channels=points * workload.out_channels,
        kernel=(1, 1),
        groups=points,
        layout=f"NCHW{workload.in_channels}c",
        w_layout="KRSC",
        out_layout=f"NCHW{workload.out_channels}c",
        dtype=workload.dtype,
    )


def tensor_winograd(workload: ConvWorkload, tile: FragmentTile, form: TensorForm) -> list[te.Tensor]:
    """Return the TE definition, in the stages below and those of `tensor_gemm` from "columns" to "sums".

    An input in NCHW is in a stage "image" (N, H, W, C) first.

    For r taps a tile has s points along each axis: 6 for 3, and 8 for 5. "windows" (tiles, s, s, C) has the inputs of
    each tile of all images, with padding; "window_rows" has them times B from one side, and "points" from both sides,
    in the layout of the product's input. "weight_rows" (K, s, r, C) and "weight_points" (s, s, K, C) have the weight
    times G so, and "taps" the same as the product's weight. "sum_rows" (tiles, 4, s, K) has the sums times A from one
    side, and "planes" (N, K, H', W') from both sides, rounded up to whole tiles. Of these "output" is made.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(*workload.operands["w"], name="w")
    operands, product = epilogue_operands(workload), winograd_product(workload)
    side, (reach, _) = side_of(workload), workload.kernel
    matrices = transforms(OUTPUTS, reach)
    channels, outputs, (top, left, _, _) = workload.in_channels, workload.out_channels, workload.padding
    (rows, columns), count = tiles_of(workload), product.width
    zero, image = tirx.const(0, workload.dtype), None
    if lays_out_input(workload):
        shape = (workload.batch, workload.height, workload.width, channels)
        image = te.compute(shape, lambda n, h, v, c: x[workload.x_layout.memory_index(n, c, h, v)], name="image")

    def window(t: tirx.Var, r: tirx.Var, s: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        h, v = t // columns % rows * OUTPUTS + r - top, t % columns * OUTPUTS + s - left
        inside = tirx.all(h >= 0, h < workload.height, v >= 0, v < workload.width)
        n = t // columns // rows
        value = x[workload.x_layout.memory_index(n, c, h, v)] if image is None else image[n, h, v, c]
        return tirx.if_then_else(inside, value, zero)

    windows = te.compute((count, side, side, channels), window, name="windows")
    window_rows = te.compute(
        (count, side, side, channels),
        lambda t, p, s, c: multiplied(matrices.input, p, lambda r: windows[t, r, s, c]),
        name="window_rows",
    )
    points = te.compute(
        product.operands["x"][0],
        lambda _n, p, _h, t, c: multiplied(matrices.input, p % side, lambda s: window_rows[t, p // side, s, c]),
        name="points",
    )
    weight_rows = te.compute(
        (outputs, side, reach, channels),
        lambda k, p, s, c: multiplied(matrices.weight, p, lambda r: w[workload.weight_layout.memory_index(k, c, r, s)]),
        name="weight_rows",
    )

    weight_points = te.compute(
        (side, side, outputs, channels),
        lambda p, q, k, c: multiplied(matrices.weight, q, lambda s: weight_rows[k, p, s, c]),
        name="weight_points",
    )

    def weight_of_groups(k: tirx.Var, _r: tirx.Var, _s: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        p = k // outputs
        return weight_points[p // side, p % side, k % outputs, c]

    taps = te.compute(product.operands["w"][0], weight_of_groups, name="taps")
    sums = tensor_sums(points, taps, {}, product, tile, form)
    sum_rows = te.compute(
        (count, OUTPUTS, side, outputs),
        lambda t, i, q, k: multiplied(matrices.output, i, lambda p: sums[0, t, p * side + q, k]),
        name="sum_rows",
    )

    def plane(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        t = (n * rows + h // OUTPUTS) * columns + v // OUTPUTS
        return multiplied(matrices.output, v % OUTPUTS, lambda q: sum_rows[t, h % OUTPUTS, q, k])

    shape = (workload.batch, outputs, rows * OUTPUTS, columns * OUTPUTS)
    planes = te.compute(shape, plane, name="planes")
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]
