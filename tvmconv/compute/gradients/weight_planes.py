"""The gradient of a depthwise convolution with respect to its weight on a GPU, from whole planes in shared memory."""

from __future__ import annotations

from typing import Any, NamedTuple

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from .weight import Shares, added_up, placeholders

VECTOR = 2
"""The number of columns of a window that are read together."""

BANKS = 32
"""The number of banks of shared memory, each four bytes wide."""


class PlaneTiles(NamedTuple):
    """The planes that a block has in shared memory, and the tiles of its threads."""

    rows: int
    """The number of rows of dy in a tile; a thread computes one tile at a time."""
    columns: int
    """The number of columns of dy in a tile, an even number."""
    images: int
    """The number of images whose planes are in shared memory at a time; each thread has one tile of one of them."""
    shares: Shares

    def tiles(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the number of tiles of a plane, by rows and by columns."""
        height, width = workload.output_size
        return -(-height // self.rows), -(-width // self.columns)

    def window(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the number of rows and of columns of x that a tile reads, the columns in whole vectors."""
        sizes = (self.rows, self.columns), workload.stride, (self.shares.block_r, self.shares.block_s)
        rows, columns = (
            (size - 1) * stride + (taps - 1) * spread + 1
            for size, stride, taps, spread in zip(*sizes, workload.dilation, strict=True)
        )
        return rows, -(-columns // VECTOR) * VECTOR

    def planes(self, workload: ConvWorkload) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the rows and columns of a plane of x, and of a plane of dy, with the zeros around them."""
        tiles, (blocks_r, blocks_s) = self.tiles(workload), self.shares.blocks(workload)
        (sh, sw), (dh, dw), (rows, columns) = workload.stride, workload.dilation, self.window(workload)
        height = (tiles[0] - 1) * self.rows * sh + (blocks_r - 1) * self.shares.block_r * dh + rows
        width = (tiles[1] - 1) * self.columns * sw + (blocks_s - 1) * self.shares.block_s * dw + columns
        return (height, width), (tiles[0] * self.rows, tiles[1] * self.columns)

    def banks(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the elements from one plane of x to the next, and of dy, modulo the number of banks of shared memory.

        With these the tiles of one image after the other fall on the banks where those of one long row would.
        """
        columns = self.tiles(workload)[1] * self.columns
        return columns * workload.stride[1] % BANKS, columns % BANKS


def weight_gradient_in_planes(workload: ConvWorkload, tiles: PlaneTiles, warp: int) -> list[te.Tensor]:
    """Return the TE definition, in the stages "lines", "given", "window", "grad", "sums" and those of `added_up`.

    Returns dy (N, K, Ho, Wo), x (N, C, H, W) and the gradient (C, M, R, S). "lines" and "given" are planes of x and of
    dy with zeros around them, in float32. Images are dealt to parts first, then to turns.
    """
    dy, x = placeholders(workload)
    k_out = workload.out_channels
    (sh, sw), (dh, dw), (top, left, _, _) = workload.stride, workload.dilation, workload.padding
    rows, columns, images, shares = tiles
    block_r, block_s, warps, parts = shares
    (tiles_y, tiles_x), blocks = tiles.tiles(workload), shares.blocks(workload)
    turns = (workload.batch + parts * images - 1) // (parts * images)
    of_x, of_dy = tiles.planes(workload)
    zero = tirx.const(0, "float32")

    def element(tensor: te.Tensor, k: Any, p: Any, turn: Any, image: Any, row: Any, column: Any) -> tirx.PrimExpr:
        """Return an element of a plane, or zero outside the plane."""
        n, (_, _, height, width) = (turn * parts + p) * images + image, tensor.shape
        inside = tirx.all(n < workload.batch, row >= 0, row < height, column >= 0, column < width)
        return tirx.if_then_else(inside, tensor[n, k, row, column].astype("float32"), zero)

    def line(k: Any, p: Any, turn: Any, image: Any, a: Any, b: Any) -> tirx.PrimExpr:
        return element(x, k // workload.multiplier, p, turn, image, a - top, b - left)

    lines = te.compute((k_out, parts, turns, images, *of_x), line, name="lines")
    given = te.compute((k_out, parts, turns, images, *of_dy), lambda *index: element(dy, *index), name="given")

    def tile(warp_index: Any, lane: Any) -> tuple[Any, Any, Any, Any]:
        """Return the number of a thread's tile, its image among those in shared memory, its first row and first column.

        Tiles are numbered along the columns of all images first, then along the rows: see `PlaneTiles.banks`.
        """
        number = warp_index * warp + lane
        row = tirx.min(number // (tiles_x * images), tiles_y - 1) * rows
        return number, number // tiles_x % images, row, number % tiles_x * columns

    def in_window(
        k: Any, p: Any, ro: Any, so: Any, turn: Any, warp_index: Any, lane: Any, a: Any, b: Any
    ) -> tirx.PrimExpr:
        _, image, y, v = tile(warp_index, lane)
        return lines[k, p, turn, image, y * sh + ro * (block_r * dh) + a, v * sw + so * (block_s * dw) + b]

    def of_tile(k: Any, p: Any, turn: Any, warp_index: Any, lane: Any, a: Any, b: Any) -> tirx.PrimExpr:
        number, image, y, v = tile(warp_index, lane)
        return tirx.Select(number < images * tiles_y * tiles_x, given[k, p, turn, image, y + a, v + b], zero)

    window_shape = (k_out, parts, *blocks, turns, warps, warp, *tiles.window(workload))
    window = te.compute(window_shape, in_window, name="window")
    grad = te.compute((k_out, parts, turns, warps, warp, rows, columns), of_tile, name="grad")
    turn, column = te.reduce_axis((0, turns), name="turn"), te.reduce_axis((0, columns), name="column")
    i = te.reduce_axis((0, tiles.window(workload)[0]), name="i")

    def product(k: Any, p: Any, ro: Any, so: Any, warp_index: Any, lane: Any, r: Any, s: Any) -> tirx.PrimExpr:
        below = i - r * dh  # each row of the window is used for all rows of the kernel over it
        met = tirx.all(below >= 0, below < rows * sh, below % sh == 0)
        factor = window[k, p, ro, so, turn, warp_index, lane, i, column * sw + s * dw]
        term = grad[k, p, turn, warp_index, lane, below // sh, column] * factor
        return te.sum(tirx.if_then_else(met, term, zero), axis=[turn, i, column])

    sums = te.compute((k_out, parts, *blocks, warps, warp, block_r, block_s), product, name="sums")
    return [dy, x, added_up(sums, workload, shares)]
