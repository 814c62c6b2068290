"""The direct convolution as sparse templates compute it: every output channel may read every input channel.

Groups, depthwise convolutions among them, are zeros of the weight like any others, so one definition does for all.
"""

from __future__ import annotations

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..padding import padded_input


def sparse(workload: ConvWorkload, tile: tuple[int, int] = (1, 1)) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "sparse" and "output".

    Returns x (N, C, H, W), w (K, C, R, S) in float32 whatever the groups are, the epilogue's operands, and the output
    (N, K, Ho, Wo). `tile` rounds the rows and columns of "sparse" up to whole tiles; "output" leaves the surplus out.
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder((workload.out_channels, workload.in_channels, *workload.kernel), "float32", name="w")
    operands = epilogue_operands(workload)
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    height, width = (-(-size // step) * step for size, step in zip(workload.output_size, tile, strict=True))
    padded, _ = padded_input(x, workload, (height, width))
    c = te.reduce_axis((0, workload.in_channels), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        element = padded[n, c, h * sh + r * dh, v * sw + s * dw].astype("float32")
        return te.sum(element * w[k, c, r, s], axis=[c, r, s])

    accumulated = te.compute((workload.batch, workload.out_channels, height, width), accumulate, name="sparse")
    return [x, w, *operands.values(), epilogue(accumulated, workload, operands)]


def band_pitch(workload: ConvWorkload) -> int:
    """Return the elements from one row of a phase to the next: an odd number where a row is longer than the output.

    With an even number TVM may find that some lanes of every vector are unused, and make vectors of a size that no
    target has.
    """
    width = workload.output_size[1]
    pitch = -(-workload.read_by((1, width))[1] // workload.stride[1])
    return pitch if pitch == width else pitch | 1


def band_pixels(workload: ConvWorkload, rows: int, tile: int) -> int:
    """Return the number of pixels in a band of `rows` rows, rounded up to whole tiles."""
    return -(-((rows - 1) * band_pitch(workload) + workload.output_size[1]) // tile) * tile


def band_rows(workload: ConvWorkload, rows: int, tile: int) -> int:
    """Return the number of input rows, in each phase, that the pixels of a band read."""
    below, beside = ((span - 1) // step for span, step in zip(workload.window, workload.stride, strict=True))
    return below + -(-(band_pixels(workload, rows, tile) + beside) // band_pitch(workload))


def sparse_rows(workload: ConvWorkload, rows: int, vectors: int, lanes: int) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "sparse" and "output", for bands of rows.

    The pixels of a band are numbered consecutively, so that vectors run across the ends of rows. A band of the padded
    input is stored once for each phase of the stride, row after row with a pitch. A tap then is an offset: output pixel
    p = h * pitch + w of a band reads index p + (r*dh // sh) * pitch + s*dw // sw of the phase (r*dh % sh, s*dw % sw),
    for any stride and dilation. Pixels between the end of a row and the pitch are computed, but are not stored in the
    output.

    Returns x (N, C, H, W), w (K, C, R, S) in float32 whatever the groups are, the epilogue's operands, and the output
    (N, K, Ho, Wo). "pad" is (N, bands, C, sh, sw, rows, pitch) in float32; "sparse", the sums, is (N, bands, K, tiles,
    vectors, lanes).
    """
    x = te.placeholder(workload.x_shape, workload.dtype, name="x")
    w = te.placeholder((workload.out_channels, workload.in_channels, *workload.kernel), "float32", name="w")
    operands = epilogue_operands(workload)
    (sh, sw), (dh, dw), (top, left, _, _) = workload.stride, workload.dilation, workload.padding
    height = workload.output_size[0]
    bands, pitch, tile = -(-height // rows), band_pitch(workload), vectors * lanes
    tiles = band_pixels(workload, rows, tile) // tile

    def element(
        n: tirx.Var, b: tirx.Var, c: tirx.Var, i: tirx.Var, j: tirx.Var, y: tirx.Var, z: tirx.Var
    ) -> tirx.PrimExpr:
        h, v = (b * rows + y) * sh + i - top, z * sw + j - left
        inside = tirx.all(h >= 0, h < workload.height, v >= 0, v < workload.width)
        return tirx.if_then_else(inside, x[n, c, h, v], tirx.const(0, x.dtype)).astype("float32")

    planes = (workload.batch, bands, workload.in_channels)
    staged = te.compute((*planes, sh, sw, band_rows(workload, rows, tile), pitch), element, name="pad")
    c = te.reduce_axis((0, workload.in_channels), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def accumulate(
        n: tirx.Var, b: tirx.Var, k: tirx.Var, t: tirx.Var, vector: tirx.Var, lane: tirx.Var
    ) -> tirx.PrimExpr:
        pixel_index = t * tile + vector * lanes + lane + r * dh // sh * pitch + s * dw // sw
        element = staged[n, b, c, r * dh % sh, s * dw % sw, pixel_index // pitch, pixel_index % pitch]
        return te.sum(element * w[k, c, r, s], axis=[c, r, s])

    shape = (workload.batch, bands, workload.out_channels, tiles, vectors, lanes)
    sums = te.compute(shape, accumulate, name="sparse")

    def pixel(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        p = h % rows * pitch + v
        return sums[n, h // rows, k, p // tile, p % tile // lanes, p % lanes]

    accumulated = te.compute(workload.output_shape, pixel, name="rows")
    return [x, w, *operands.values(), epilogue(accumulated, workload, operands)]
