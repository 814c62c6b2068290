"""The gradient of a depthwise convolution with respect to its weight, for tensors in NHWC on a GPU.

Lanes are neighbouring channels. The pixels of all images are dealt in tiles to the threads of many blocks; each block
adds up the sums of its threads, and a second kernel adds up the sums of the blocks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from .weight import widened


class ChannelTiles(NamedTuple):
    """The tiles of a GPU's threads, and the blocks and threads that share them, in a weight gradient in NHWC."""

    rows: int
    """The number of rows of dy in a tile; a thread computes one tile at a time."""
    columns: int
    parts: int
    """The number of blocks that share the tiles of a channel."""
    threads: int
    """The number of threads of a block that share its tiles."""

    def window(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the number of rows and of columns of x that a tile reads."""
        axes = zip((self.rows, self.columns), workload.stride, workload.kernel, strict=True)
        rows, columns = (taps if size == 1 else (size - 1) * stride + taps for size, stride, taps in axes)
        return rows, columns

    def whole(self, workload: ConvWorkload) -> tuple[bool, bool]:
        """Return whether a tile has all rows, and all columns, of a plane: along such an axis it skips padding.

        An axis of one element counts as not whole.
        """
        (rows, columns), (height, width) = (self.rows, self.columns), workload.output_size
        return 1 < rows == height, 1 < columns == width


def weight_gradient_in_channels(workload: ConvWorkload, tiles: ChannelTiles) -> list[te.Tensor]:
    """Return the TE definition of dy (N, Ho, Wo, K), x (N, H, W, K) and the gradient (K, 1, R, S).

    Its stages are "near_x", "wide_x", "window", "near_dy", "wide_dy", "grad", "sums", "parts", "total" and "output".
    "near_x" and "near_dy" read at indices that are clamped into the operands, "wide_x" and "wide_dy" are the elements
    in float32, and "window" and "grad" have zeros instead of elements outside. So one instruction selects: a compiler
    makes a branch of a conversion that is needed on a condition. A tile of several rows, or columns, takes no dilation
    of them. A tile of all rows, or columns, of a plane leaves out the products with the zeros around x.
    """
    dy = te.placeholder(workload.operands["output"][0], workload.dtype, name="dy")
    x = te.placeholder(workload.operands["x"][0], workload.dtype, name="x")
    (ho, wo), (kr, ks), channels = workload.output_size, workload.kernel, workload.out_channels
    (sh, sw), (dh, dw), (top, left, _, _) = workload.stride, workload.dilation, workload.padding
    rows, columns, parts, threads = tiles
    all_rows, all_columns = tiles.whole(workload)
    tiles_x, zero = -(-wo // columns), tirx.const(0, "float32")
    plane = -(-ho // rows) * tiles_x
    all_tiles = workload.batch * plane
    turns = (all_tiles + parts * threads - 1) // (parts * threads)

    def tile(p: Any, turn: Any, thread: Any) -> tuple[Any, Any, Any, Any]:
        """Return the number of a tile, its image, its first row and its first column."""
        number = (p * turns + turn) * threads + thread  # tiles of a block are neighbours: rows are read from the cache
        known = tirx.min(number, all_tiles - 1)
        return number, known // plane, known % plane // tiles_x * rows, known % tiles_x * columns

    def of_x(p: Any, turn: Any, thread: Any, a: Any, b: Any) -> tuple[Any, Any, Any, Any]:
        """Return the number of a tile, its image, and the row and column in x of an element of its window."""
        number, n, y, v = tile(p, turn, thread)
        row = y * sh + a * (dh if rows == 1 else 1) - top
        return number, n, row, v * sw + b * (dw if columns == 1 else 1) - left

    def within(index: Any, size: int) -> Any:
        return tirx.max(tirx.min(index, size - 1), 0)

    def near_x(*index: Any) -> tirx.PrimExpr:
        _, n, row, column = of_x(*index[:-1])
        return x[n, within(row, workload.height), within(column, workload.width), index[-1]]

    def in_window(*index: Any) -> tirx.PrimExpr:
        number, _, row, column = of_x(*index[:-1])
        inside = [number < all_tiles, row >= 0, row < workload.height, column >= 0, column < workload.width]
        return tirx.Select(tirx.all(*inside), wide_x[index], zero)

    def near_dy(p: Any, turn: Any, thread: Any, a: Any, b: Any, k: Any) -> tirx.PrimExpr:
        _, n, y, v = tile(p, turn, thread)
        return dy[n, within(y + a, ho), within(v + b, wo), k]

    def of_dy(*index: Any) -> tirx.PrimExpr:
        p, turn, thread, a, b, _ = index
        number, _, y, v = tile(p, turn, thread)
        inside = tirx.all(number < all_tiles, y + a < ho, v + b < wo)
        return tirx.Select(inside, wide_dy[index], zero)

    window_shape = (parts, turns, threads, *tiles.window(workload), channels)
    nearest_x = te.compute(window_shape, near_x, name="near_x")
    wide_x = widened(nearest_x, "wide_x")
    window = te.compute(window_shape, in_window, name="window")
    nearest_dy = te.compute((parts, turns, threads, rows, columns, channels), near_dy, name="near_dy")
    wide_dy = widened(nearest_dy, "wide_dy")
    grad = te.compute(nearest_dy.shape, of_dy, name="grad")
    turn, column = te.reduce_axis((0, turns), name="turn"), te.reduce_axis((0, columns), name="column")
    i = te.reduce_axis((0, tiles.window(workload)[0]), name="i")

    def product(p: Any, thread: Any, r: Any, s: Any, k: Any) -> tirx.PrimExpr:
        below = i - r  # each row of the window is used for all rows of the kernel over it
        met = [below >= 0, below < rows * sh, below % sh == 0]
        if all_rows:
            met += [i >= top, i < top + workload.height]
        beside = column * sw + s
        if all_columns:
            met += [beside >= left, beside < left + workload.width]
        term = grad[p, turn, thread, below // sh, column, k] * window[p, turn, thread, i, beside, k]
        return te.sum(tirx.if_then_else(tirx.all(*met), term, zero), axis=[turn, i, column])

    sums = te.compute((parts, threads, kr, ks, channels), product, name="sums")
    thread, p = te.reduce_axis((0, threads), name="thread"), te.reduce_axis((0, parts), name="p")
    of_parts = te.compute(
        (parts, kr, ks, channels),
        lambda p, r, s, k: te.sum(sums[p, thread, r, s, k], axis=[thread]),
        name="parts",
    )
    total = te.compute(
        (kr, ks, channels),
        lambda r, s, k: te.sum(of_parts[p, r, s, k], axis=[p]),
        name="total",
    )
    output = te.compute(workload.w_shape, lambda k, _, r, s: total[r, s, k].astype(workload.dtype), name="output")
    return [dy, x, output]
