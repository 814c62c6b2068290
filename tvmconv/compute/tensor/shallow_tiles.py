"""Convolution of few input channels for tensor cores, as in a network's first layer.

A block reads a tile of the input, with what its windows reach beyond it, into shared memory once, and the channels of a
pixel side by side. The elements of a row of a window are contiguous there, as in the layout of the im2win thesis: so
two neighbouring terms of a sum are one word, and threads take the columns of im2col from the tile itself.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import whole_tiles

EIGHT = 8
"""The rows of a matrix of tensor cores: neighbouring pixels."""

STEP = 16
"""The terms of an instruction of tensor cores in half precision."""

QUAD = 4
"""The number of lanes that share the sums of a pixel."""


def pixel_channels(workload: ConvWorkload) -> int:
    """Return the channels of a pixel in shared memory: one is added where windows would begin inside a word."""
    return workload.in_channels + workload.stride[1] * workload.in_channels % 2


def row_terms(workload: ConvWorkload) -> int:
    """Return the number of terms of a row of a window, rounded up to whole words of two terms."""
    terms = workload.kernel[1] * pixel_channels(workload)
    return terms + terms % 2


def window_terms(workload: ConvWorkload) -> int:
    """Return the number of terms of a window up to its last one, with the terms that fill up its rows."""
    return (workload.kernel[0] - 1) * row_terms(workload) + workload.kernel[1] * pixel_channels(workload)


def instructions_of_sum(workload: ConvWorkload) -> int:
    """Return the number of instructions for a sum."""
    return -(-workload.kernel[0] * row_terms(workload) // STEP)


def shallow_tiles(workload: ConvWorkload, tile: tuple[int, int, int, int]) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pixels", "weights", "product", "sums", "planes" and "output".

    Returns x and w in the workload's layouts, the epilogue's operands, and the output. `tile` is the rows and columns
    of pixels of a tile, the outputs of a warp, and the number of warps along the outputs. "pixels" has the input as
    tiles read it, with zeros around it: (N, row tiles, column tiles, rows, columns, `pixel_channels`). "packed" is the
    weight, laid out by a separate kernel: (tiles of outputs, outputs, terms), with zeros between rows of windows and at
    the end, and with the outputs in the order in which a warp's instructions take them; "weights" copies a tile of it.
    "product" has the sums of tiles: (N, row tiles, column tiles, rows, columns, warps, outputs of a warp), and "sums"
    is a copy of it.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(*workload.operands["w"], name="w")
    operands, (rows, columns, outputs, warps) = epilogue_operands(workload), tile
    (sh, sw), (kernel_y, kernel_x), sum_type = workload.stride, workload.kernel, workload.storage.sums
    channels, terms, lane_outputs = pixel_channels(workload), row_terms(workload), outputs // QUAD
    pixels = _pixels(x, workload, rows, columns)
    weights = _weights(w, workload, outputs, warps)
    r = te.reduce_axis((0, kernel_y), name="r")
    # The term that fills up a row is read too, so that whole vectors are copied where a row has 7 terms.
    term = te.reduce_axis((0, terms), name="term")

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        *which, h, v, warp, k = axes
        column = tirx.min(term // channels, kernel_x - 1)
        at_pixel = *which, h * sh + r, v * sw + column, term % channels
        q, e = k // lane_outputs, k % lane_outputs
        weight_row = warp % warps * outputs + e // 2 * EIGHT + q * 2 + e % 2
        of_row = r * terms + term
        weight = weights[warp // warps, weight_row, of_row // EIGHT, of_row % EIGHT]
        factor = pixels[at_pixel].astype(sum_type) * weight.astype(sum_type)
        if terms > kernel_x * channels:
            factor = tirx.if_then_else(term < kernel_x * channels, factor, tirx.const(0, sum_type))
        return te.sum(factor, axis=[r, term])

    shape = (*pixels.shape[:3], rows, columns, int(weights.shape[0]) * warps, outputs)
    product = te.compute(shape, accumulate, name="product")
    tiled = te.compute(shape, lambda *index: product[index], name="sums")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        return tiled[n, h // rows, v // columns, h % rows, v % columns, k // outputs, k % outputs]

    planes = te.compute((workload.batch, workload.out_channels, *workload.output_size), gather, name="planes")
    return [x, w, *operands.values(), epilogue(planes, workload, operands)]


def _pixels(x: te.Tensor, workload: ConvWorkload, rows: int, columns: int) -> te.Tensor:
    """Return the stage "pixels" of `shallow_tiles`."""
    (sh, sw), (top, left, _, _), zero = workload.stride, workload.padding, tirx.const(0, x.dtype)

    def element(n: tirx.Var, y: tirx.Var, xs: tirx.Var, row: tirx.Var, col: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        h, v = y * (rows * sh) + row - top, xs * (columns * sw) + col - left
        inside = [h >= 0, h < workload.height, v >= 0, v < workload.width]
        inside += [] if channels == workload.in_channels else [c < workload.in_channels]
        return tirx.if_then_else(tirx.all(*inside), x[workload.x_layout.memory_index(n, c, h, v)], zero)

    channels = pixel_channels(workload)
    tiles = [whole_tiles(size, step) for size, step in zip(workload.output_size, (rows, columns), strict=True)]
    shape = (workload.batch, *tiles, *workload.read_by((rows, columns)), channels)
    return te.compute(shape, element, name="pixels")


def _weights(w: te.Tensor, workload: ConvWorkload, outputs: int, warps: int) -> te.Tensor:
    """Return the stage "weights" of `shallow_tiles`, after "packed"."""
    channels_in_group, channels, terms = workload.in_channels, pixel_channels(workload), row_terms(workload)
    (kernel_y, kernel_x), zero = workload.kernel, tirx.const(0, w.dtype)
    tiles = -(-workload.out_channels // (outputs * warps))

    def laid_out(tile_k: tirx.Var, row: tirx.Var, element: tirx.Var) -> tirx.PrimExpr:
        column, q, e = row % outputs // EIGHT, row % EIGHT // 2, row % 2
        of_warp = q * (outputs // QUAD) + column * 2 + e
        k = (tile_k * warps + row // outputs) * outputs + of_warp
        r, s, c = element // terms, element % terms // channels, element % terms % channels
        inside = [k < workload.out_channels, r < kernel_y, s < kernel_x, c < channels_in_group]
        return tirx.if_then_else(tirx.all(*inside), w[workload.weight_layout.memory_index(k, c, r, s)], zero)

    packed = te.compute((tiles, outputs * warps, instructions_of_sum(workload) * STEP), laid_out, name="packed")

    def weight(tile_k: tirx.Var, row: tirx.Var, eight: tirx.Var, lane: tirx.Var) -> tirx.PrimExpr:
        return packed[tile_k, row, eight * EIGHT + lane]

    return te.compute(
        (tiles, outputs * warps, instructions_of_sum(workload) * STEP // EIGHT, EIGHT), weight, name="weights"
    )
