"""Depthwise convolution for tensor cores: a row of taps is a band of a matrix, from columns of the input to outputs.

The outputs of a tile, 16 of a row, are the product of the columns that they read with a matrix that has the taps of a
row of the kernel along its diagonals, summed over the rows of the kernel. Eight rows of outputs share the matrix.
"""

from __future__ import annotations

from math import gcd

import msgspec
from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import whole_tiles

EIGHT = 8
"""The number of output rows in one matrix product."""

BAND = 16
"""The number of neighbouring outputs of a row in one matrix product."""

BEFORE, BESIDE = BAND - 2, BAND
"""The zeros in front of a row of taps, as the last pair of outputs, 14 and 15, reads from 14 columns before its window;
and all zeros that are added to a row, in whole vectors."""

VECTOR_BYTES, STEP_BYTES = 16, 32
"""The bytes in a row of a matrix of tensor cores, and the bytes of a row that one instruction multiplies."""

LEAST_COPY = 4
"""The bytes of the shortest asynchronous copy from memory to shared memory."""


def columns_of(workload: ConvWorkload, size: int) -> int:
    """Return the number of input columns in `size` bytes."""
    return size // workload.itemsize


def surplus(workload: ConvWorkload) -> int:
    """Return the number of columns read before the first window, so that reads begin at whole vectors of the input."""
    return -workload.padding[1] % columns_of(workload, VECTOR_BYTES)


def reach(workload: ConvWorkload) -> int:
    """Return the number of input columns that the outputs of a band read, rounded up to whole instructions."""
    step = columns_of(workload, STEP_BYTES)
    return whole_tiles(surplus(workload) + BAND - 1 + workload.kernel[1], step) * step


def lanes(workload: ConvWorkload) -> int:
    """Return the number of columns in a vector: it divides the width, so each vector is inside the input or outside."""
    return gcd(columns_of(workload, VECTOR_BYTES), workload.width)


def sequences_as_rows(workload: ConvWorkload) -> ConvWorkload:
    """Return a workload in which sequences, images of one row, are rows of one image; other workloads as they are."""
    if workload.height > 1 or workload.kernel[0] > 1 or workload.output_size[0] > 1:
        return workload
    return msgspec.structs.replace(workload, batch=1, height=workload.batch)


def lines_read(workload: ConvWorkload, tile: tuple[int, int]) -> tuple[range, range]:
    """Return the ranges of rows and columns under a tile that are multiplied, counted from the first that windows read.

    Where a tile is as large as the plane, padding is left out: rows that are in no group of eight with rows of the
    input, and columns in whole instructions.
    """
    (height, width), (top, left, _, _) = workload.output_size, workload.padding
    rows, columns = range(tile[0] + workload.kernel[0] - 1), range(tile[1] + reach(workload) - BAND)
    if tile[0] >= height:
        rows = rows[max(0, top - EIGHT + 1) : top + workload.height + EIGHT - 1]
    if tile[1] >= width:
        step, first = columns_of(workload, STEP_BYTES), left + surplus(workload)
        columns = columns[first // step * step : whole_tiles(first + workload.width, step) * step]
    return rows, columns


def depthwise_bands(workload: ConvWorkload, tile: tuple[int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "lines", "packed", "taps", "product", "sums", "planes" and "output".

    Returns x (N, C, H, W) and w (C, 1, R, S), the epilogue's operands, and the output. `tile` is the rows and columns
    of outputs in a tile, of planes as `sequences_as_rows` has them. "lines" is the input as tiles read it, with zeros
    around it: (N, C, row tiles, column tiles, rows, vectors, columns of a vector), for the rows and columns that
    `lines_read` returns.
    "packed" has the rows of taps among zeros, (C, R, 2, columns), in two copies: a pair of taps under an even output
    begins at an even index in the first copy, and under an odd output in the second, which is shifted by a column;
    "taps" is "packed" in vectors. "product" has the sums in the order of the registers of tensor cores, (N, C, row
    tiles, column tiles, groups of eight rows, bands, pairs of columns, columns of a pair, pairs of rows, rows of a
    pair), and "sums" is a copy of it. Elements outside the band are not added, so that NaN and infinity in the input
    there do no harm.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.storage.weight, name="w")
    operands, (rows, columns), sums = epilogue_operands(workload), tile, workload.storage.sums
    planes = sequences_as_rows(workload)
    lines, taps = _lines(x, planes, tile, planes is not workload), _taps(w, workload)
    (first_row, *_), (first_column, *_) = lines_read(planes, tile)
    width, vector = lanes(workload), columns_of(workload, VECTOR_BYTES)
    r, read = te.reduce_axis((0, workload.kernel[0]), name="r"), te.reduce_axis((0, reach(workload)), name="read")

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        *which, eight, band, two, odd, pair, row_of_pair = axes
        row, column = eight * EIGHT + pair * 2 + row_of_pair + r - first_row, band * BAND + read - first_column
        tap, s = read - two * 2 + BEFORE, read - two * 2 - odd - surplus(workload)
        inside = [row >= 0, row < lines.shape[4], column >= 0, column < lines.shape[5] * width]
        inside += [s >= 0, s < workload.kernel[1]]
        index = *which, row, column // width, column % width
        pixel = lines[index].astype(sums)
        term = pixel * taps[which[1], r, odd, tap // vector, tap % vector].astype(sums)
        return te.sum(tirx.if_then_else(tirx.all(*inside), term, tirx.const(0, sums)), axis=[r, read])

    shape = (*lines.shape[:4], rows // EIGHT, columns // BAND, EIGHT, 2, EIGHT // 2, 2)
    product = te.compute(shape, accumulate, name="product")
    tiled = te.compute(shape, lambda *index: product[index], name="sums")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        n, h = (n, h) if planes is workload else (0, n)
        row, column = h % rows, v % columns
        tiles = n, k, h // rows, v // columns, row // EIGHT, column // BAND
        index = *tiles, column % BAND // 2, column % 2, row % EIGHT // 2, row % 2
        return tiled[index]

    gathered = te.compute((workload.batch, workload.out_channels, *workload.output_size), gather, name="planes")
    return [x, w, *operands.values(), epilogue(gathered, workload, operands)]


def _lines(x: te.Tensor, workload: ConvWorkload, tile: tuple[int, int], of_sequences: bool) -> te.Tensor:
    """Return the stage "lines" of `depthwise_bands`; with `of_sequences` image h of x is row h of a plane."""
    (rows, columns), (top, left, _, _), width = tile, workload.padding, lanes(workload)
    rows_read, columns_read = lines_read(workload, tile)
    top, left = top - rows_read[0], left + surplus(workload) - columns_read[0]
    tiles = [whole_tiles(size, step) for size, step in zip(workload.output_size, tile, strict=True)]

    def element(*axes: tirx.Var) -> tirx.PrimExpr:
        n, c, y, xs, row, vector, lane = axes
        h, v = y * rows + row - top, xs * (columns // width) + vector - left // width
        inside = tirx.all(h >= 0, h < workload.height, v >= 0, v < workload.width // width)
        index = *((h, c, 0) if of_sequences else (n, c, h)), v * width + lane
        return tirx.if_then_else(inside, x[index], tirx.const(0, x.dtype))

    shape = (workload.batch, workload.in_channels, *tiles, len(rows_read), len(columns_read) // width, width)
    return te.compute(shape, element, name="lines")


def _taps(w: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    """Return the stage "taps" of `depthwise_bands`, after "packed"."""
    vector = columns_of(workload, VECTOR_BYTES)

    def element(k: tirx.Var, r: tirx.Var, odd: tirx.Var, column: tirx.Var) -> tirx.PrimExpr:
        s = column - odd - (BEFORE + surplus(workload))
        return tirx.if_then_else(tirx.all(s >= 0, s < workload.kernel[1]), w[k, 0, r, s], tirx.const(0, w.dtype))

    packed = te.compute(
        (workload.out_channels, workload.kernel[0], 2, reach(workload) + BESIDE), element, name="packed"
    )

    def same(k: tirx.Var, r: tirx.Var, odd: tirx.Var, which: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        return packed[k, r, odd, which * vector + lane]

    return te.compute((*packed.shape[:3], packed.shape[3] // vector, vector), same, name="taps")
