"""Winograd's convolution: `O = A [sum over c of (G F[k, c] Gt) * (B P[n, c] Bt)] At` for each tile of outputs.

It is for kernels of 3x3 taps and a stride of 1, and takes 16 multiplications for 2x2 outputs, or 36 for 4x4, where the
direct convolution takes 36 and 144 (Lavin and Gray, Fast Algorithms for Convolutional Neural Networks, 2016).

The matrices are those of F(m, r), by the method of Toom and Cook: m outputs of a filter of r taps are the values, at
m + r - 1 points, of a product of polynomials, `y = A ((G g) * (B d))` for inputs d and taps g (section 4 there). The
last of the points is infinity.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache, partial, reduce
from typing import NamedTuple

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import is_whole, whole_tiles
from ..padding import padded_input

TAPS = 3
"""The number of taps of a filter along each axis, unless another one is given."""

Matrix = tuple[tuple[Fraction, ...], ...]

POINTS = {4: (0, 1), 6: (0, Fraction(3, 4), Fraction(3, 2)), 8: (0, Fraction(1, 2), 1, 2)}
"""The interpolation points for a total of 4, 6 or 8: those listed, the negatives of all but 0, and infinity.

The points of F(4, 3) make errors half as large as the usual 0, 1 and 2 do (measured), and the fractions are exact. No
other 8 points, of sixteenths and eighths up to 3, have a smaller sum of errors, with 5 taps or with 3 (computed).
Scaling the rows of two matrices by powers of two to balance them would change no rounding.
"""


class WinogradTile(NamedTuple):
    """The sizes that a schedule of Winograd's convolution rounds up to whole multiples."""

    outputs: int
    """The number of output rows, and of output columns, of a tile: 2 or 4."""
    rows: int
    """The number of rows of tiles in a band; a band is transformed as a whole."""
    images: int
    """The number of images whose rows of tiles are in one band; it divides the batch."""
    across: int
    """The number of tiles of a row that are adjacent in a band, before those of its next row."""
    together: int
    """The number of tiles of a band that are summed together; where the width is open it divides images * rows *
    across."""
    lanes: int
    """The number of adjacent input channels in "blocks" and "tiles"."""
    block: int
    """The number of output channels whose weights are adjacent in "packed"."""


def winograd(workload: ConvWorkload, tile: WinogradTile) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "blocks", "tiles", "packed", "winograd", "sums" and "output".

    Where the weight is in half precision, or its channels are no whole blocks, there is a stage "taps", too: the weight
    in the type of sums, with zeros for the channels that fill blocks up.

    Operands and result are those of `direct`. "blocks" is the padded input with channels in blocks of the lanes,
    "tiles" the transformed input (N / images, bands, points, points, channels / lanes, tiles, lanes), "packed" the
    transformed weight (blocks, points, points, channels, block), "winograd" the sums of their products over the
    channels, and "sums" those transformed to outputs (N, K, H, W). All are rounded up to whole parts: the last tile of
    a band is computed again, and "output" leaves the surplus out.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    sums = workload.storage.sums
    operands = epilogue_operands(workload)
    step, lanes, block = tile.outputs, tile.lanes, tile.block
    matrices, points = transforms(step), step + TAPS - 1
    channels, (height, width) = workload.in_channels, workload.output_size
    depth, out_blocks = -(-channels // lanes) * lanes, -(-workload.out_channels // block)
    lines, across = tile.images * tile.rows, tile.across
    bands, panels = whole_tiles(height, step * tile.rows), whole_tiles(width, step * across)
    count = lines * across * panels  # the tiles of a band
    rounded = count if is_whole(count, tile.together) else -(-count // tile.together) * tile.together
    padded, _ = padded_input(x, workload, (bands * (tile.rows * step), panels * (across * step)))

    def block_of_channels(n: tirx.Var, c: tirx.Var, h: tirx.Var, v: tirx.Var, i: tirx.Var) -> tirx.PrimExpr:
        channel = _within(c * lanes + i, channels, lanes)
        return padded[workload.x_layout.memory_index(n, channel, h, v)].astype(sums)

    size = (padded.shape[axis] for axis in workload.x_layout.spatial)
    blocks = te.compute((workload.batch, depth // lanes, *size, lanes), block_of_channels, name="blocks")

    def input_tile(
        n: tirx.Var, b: tirx.Var, p: tirx.Var, q: tirx.Var, c: tirx.Var, t: tirx.Var, i: tirx.Var
    ) -> tirx.PrimExpr:
        t = t if rounded is count else tirx.min(t, count - 1)
        panel, of_panel = t // (lines * across), t % (lines * across)
        line, column = of_panel // across, panel * across + of_panel % across
        image, row = (n, line) if tile.images == 1 else (n * tile.images + line // tile.rows, line % tile.rows)
        h, v = (b * tile.rows + row) * step, column * step
        return transformed(matrices.input, p, q, lambda r, s: blocks[image, c, h + r, v + s, i])

    shape = (workload.batch // tile.images, bands, points, points, depth // lanes, rounded, lanes)
    tiles = te.compute(shape, input_tile, name="tiles")
    taps = _whole_blocks(w, (out_blocks * block, depth), sums)

    def weight_tile(kb: tirx.Var, p: tirx.Var, q: tirx.Var, c: tirx.Var, ki: tirx.Var) -> tirx.PrimExpr:
        return transformed(matrices.weight, p, q, lambda r, s: taps[kb * block + ki, c, r, s])

    packed = te.compute((out_blocks, points, points, depth, block), weight_tile, name="packed")
    c = te.reduce_axis((0, depth), name="c")

    def accumulate(
        n: tirx.Var, b: tirx.Var, kb: tirx.Var, p: tirx.Var, q: tirx.Var, t: tirx.Var, ki: tirx.Var
    ) -> tirx.PrimExpr:
        return te.sum(packed[kb, p, q, c, ki] * tiles[n, b, p, q, c // lanes, t, c % lanes], axis=c)

    shape = (workload.batch // tile.images, bands, out_blocks, points, points, rounded, block)
    product = te.compute(shape, accumulate, name="winograd")

    def output_tile(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        row, column = h // step, v // step
        line = n % tile.images * tile.rows + row % tile.rows
        t = (column // across * lines + line) * across + column % across
        image, band = n // tile.images, row // tile.rows

        def element(p: int, q: int) -> tirx.PrimExpr:
            return product[image, band, k // block, p, q, t, k % block]

        return transformed(matrices.output, h % step, v % step, element)

    planes = (workload.batch, out_blocks * block, bands * (tile.rows * step), panels * (across * step))
    outputs = te.compute(planes, output_tile, name="sums")
    return [x, w, *operands.values(), epilogue(outputs, workload, operands)]


def _whole_blocks(w: te.Tensor, channels: tuple[int, int], dtype: str) -> te.Tensor:
    """Return a weight (K, C, R, S) in a dtype, with zeros up to numbers of K and C: itself, or the stage "taps"."""
    out_channels, in_channels = w.shape[:2]
    if w.dtype == dtype and channels == (out_channels, in_channels):
        return w

    def tap(k: tirx.Var, c: tirx.Var, r: tirx.Var, s: tirx.Var) -> tirx.PrimExpr:
        inside = tirx.all(k < out_channels, c < in_channels)
        return tirx.if_then_else(inside, w[k, c, r, s].astype(dtype), tirx.const(0, dtype))

    return te.compute((*channels, *w.shape[2:]), tap, name="taps")


def transformed(
    matrix: Matrix, row: tirx.PrimExpr, column: tirx.PrimExpr, element: Callable[[int, int], tirx.PrimExpr]
) -> tirx.PrimExpr:
    """Return element (row, column) of `M D Mt`, where D is the matrix of `element(i, j)`."""
    rows = range(len(matrix[0]))
    inner = [multiplied(matrix, column, partial(element, r)) for r in rows]
    return multiplied(matrix, row, inner.__getitem__)


def multiplied(matrix: Matrix, row: tirx.PrimExpr, element: Callable[[int], tirx.PrimExpr]) -> tirx.PrimExpr:
    """Return element `row` of `M d`, where d is the vector of `element(i)`."""
    return sum(_coefficient(matrix, row, column) * element(column) for column in range(len(matrix[0])))


def _coefficient(matrix: Matrix, row: tirx.PrimExpr, column: int) -> tirx.PrimExpr:
    """Return an element of a matrix whose row is an expression of TVM: a chain of selects by the row."""
    values = [float(each[column]) for each in matrix]
    usual = max(values, key=values.count)
    others = [(index, tirx.const(value, "float32")) for index, value in enumerate(values) if value != usual]
    return reduce(lambda rest, each: tirx.Select(row == each[0], each[1], rest), others, tirx.const(usual, "float32"))


def _within(index: tirx.PrimExpr, extent: int, step: int) -> tirx.PrimExpr:
    """Return an index limited to the last one of an extent, where the extent is no multiple of `step`."""
    return index if extent % step == 0 else tirx.min(index, extent - 1)


class Transforms(NamedTuple):
    """The three matrices. Rows 1 and 2 belong to a point and its negative, rows 3 and 4 to the next one, and so on."""

    output: Matrix
    """A, with a row for each output."""
    weight: Matrix
    """G, with a row for each point."""
    input: Matrix
    """B, with a row for each point."""


@cache
def transforms(outputs: int, taps: int = TAPS) -> Transforms:
    """Return the matrices for `outputs` outputs along an axis and `taps` taps, for which there are `POINTS`."""
    chosen = POINTS[outputs + taps - 1]
    points = [sign * Fraction(point) for point in chosen for sign in ((1, -1) if point else (1,))]
    last = tuple(Fraction(tap == taps - 1) for tap in range(taps))
    output = tuple((*(point**power for point in points), Fraction(power == outputs - 1)) for power in range(outputs))
    weight, rows = [], []
    for point in points:
        others = [other for other in points if other != point]
        factor = _polynomial(others, point)
        weight.append(tuple(point**tap / factor for tap in range(taps)))
        rows.append((*_coefficients(others), Fraction(0)))
    return Transforms(output, (*weight, last), (*rows, _coefficients(points)))


def _polynomial(roots: list[Fraction], at: Fraction) -> Fraction:
    """Return the value of the polynomial with these roots at a point."""
    value = Fraction(1)
    for root in roots:
        value *= at - root
    return value


def _coefficients(roots: list[Fraction]) -> tuple[Fraction, ...]:
    """Return the coefficients of the polynomial with these roots, the constant one first."""
    found = [Fraction(1)]
    for root in roots:
        found = [
            (found[power - 1] if power else Fraction(0)) - root * (found[power] if power < len(found) else Fraction(0))
            for power in range(len(found) + 1)
        ]
    return tuple(found)
