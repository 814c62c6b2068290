"""Depthwise convolution of whole small planes for tensor cores: a row of taps is a band of a matrix.

Sixteen columns of outputs are the product of sixteen columns of the input with a matrix that has a row of taps along
its diagonals, summed over such columns and over the rows of the kernel. Eight rows of outputs share the matrix. Where
planes are narrow, two images are side by side in the sixteen columns.
"""

from __future__ import annotations

from math import gcd

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import whole_tiles
from .bands import BAND, EIGHT, VECTOR_BYTES


def side_by_side(workload: ConvWorkload, images: int) -> int:
    """Return the number of images, 1 or 2, whose columns share the sixteen of a matrix; a warp has `images` images."""
    return 2 if images % 2 == 0 and max(workload.width, workload.output_size[1]) <= BAND // 2 else 1


def eights(workload: ConvWorkload) -> tuple[int, int]:
    """Return the number of groups of eight rows in a plane, and the number of bands of sixteen columns.

    With n groups, group i has the rows i, i + n, i + 2n, ...
    """
    height, width = workload.output_size
    return whole_tiles(height, EIGHT), whole_tiles(width, BAND)


def neighbours(workload: ConvWorkload) -> int:
    """Return the number of neighbouring channels of a warp: two in NHWC, which share a word of shared memory."""
    return 2 if workload.layout == "NHWC" else 1


def copied_runs(workload: ConvWorkload, channels: int) -> tuple[int, int, int]:
    """Return how `channels` planes of an image are copied: contiguous runs, vectors of a run, elements of a vector.

    In NHWC a run is a pixel, in NCHW all of the planes.
    """
    plane = workload.height * workload.width
    if workload.layout == "NHWC":
        return plane, channels // 2, 2
    lanes = gcd(channels * plane, VECTOR_BYTES // workload.itemsize)
    return 1, channels * plane // lanes, lanes


def depthwise_planes(workload: ConvWorkload, images: int, channels: int) -> list[te.Tensor]:
    """Return the TE definition, in the stages "lines", "taps", "product", "sums", "planes" and "output".

    Returns the operands in the order of `workload.operands`; x and the output are in NCHW or in NHWC. `images` of the
    batch and `channels` are computed together. "lines" has planes in the order of memory, (N, C / channels, runs,
    vectors, lanes) as `copied_runs` returns them, and "taps" the filters, (C / channels, channels, R, S). "product" has
    sums in the order of the registers of tensor cores: (N, C, groups of eight rows, bands, pairs of columns, columns of
    a pair, pairs of rows, rows of a pair). With two images side by side the first dimension is N / 2, and there are
    eight columns and two images instead of pairs of columns and columns of a pair.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.storage.weight, name="w")
    operands, sums, is_nhwc = epilogue_operands(workload), workload.storage.sums, workload.layout == "NHWC"
    (height, width), (top, left, _, _), kernel = (workload.height, workload.width), workload.padding, workload.kernel
    (rows, bands), together = eights(workload), side_by_side(workload, images)
    pixels, vectors, lanes = copied_runs(workload, channels)
    blocks = workload.in_channels // channels

    def element(n: tirx.Var, block: tirx.Var, pixel: tirx.Var, vector: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        offset = vector * lanes + lane
        if is_nhwc:
            return x[n, pixel // width, pixel % width, block * channels + offset]
        channel, pixel_index = block * channels + offset // (height * width), offset % (height * width)
        return x[n, channel, pixel_index // width, pixel_index % width]

    lines = te.compute((workload.batch, blocks, pixels, vectors, lanes), element, name="lines")
    taps = te.compute(
        (blocks, channels, *kernel), lambda block, own, r, s: w[block * channels + own, 0, r, s], name="taps"
    )
    r, s = te.reduce_axis((0, kernel[0]), name="r"), te.reduce_axis((0, kernel[1]), name="s")

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        n, k, eight, band, two, column_of_pair, pair, odd = axes
        row, column = rows * (2 * pair + odd) + eight + r - top, band * BAND + 2 * two + column_of_pair + s - left
        if together == 2:
            n, column = 2 * n + column_of_pair, two + s - left
        block, channel, pixel = k // channels, k % channels, row * width + column
        if is_nhwc:
            index = n, block, pixel, channel // lanes, channel % lanes
        else:
            offset = channel * (height * width) + pixel
            index = n, block, 0, offset // lanes, offset % lanes
        inside = tirx.all(row >= 0, row < height, column >= 0, column < width)
        term = lines[index].astype(sums) * taps[block, channel, r, s].astype(sums)
        return te.sum(tirx.if_then_else(inside, term, tirx.const(0, sums)), axis=[r, s])

    shape = (workload.batch // together, workload.in_channels, rows, bands, EIGHT, 2, EIGHT // 2, 2)
    product = te.compute(shape, accumulate, name="product")
    tiled = te.compute(shape, lambda *index: product[index], name="sums")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        of_row = h // rows // 2, h // rows % 2
        if together == 2:
            return tiled[n // 2, k, h % rows, 0, v, n % 2, of_row[0], of_row[1]]
        return tiled[n, k, h % rows, v // BAND, v % BAND // 2, v % 2, of_row[0], of_row[1]]

    gathered = te.compute((workload.batch, workload.out_channels, *workload.output_size), gather, name="planes")
    return [x, w, *operands.values(), epilogue(gathered, workload, operands)]
