"""The gradient of a depthwise convolution with respect to its weight: a sum over all pixels of all images for each tap.

`dF[c, q, r, s] = sum over n, h, w of dY[n, c*M + q, h, w] * P[n, c, h*sh + r*dh, w*sw + s*dw]`, P being x with its
padding. On a CPU lanes are neighbouring columns; on a GPU they are threads, each with a tile of one column and some
rows.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np
from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..padding import padded_input


class Bands(NamedTuple):
    """The division of a plane's rows among the tasks of a CPU, in a gradient with respect to a weight."""

    parts: int
    """The number of tasks of a channel."""
    bands: int
    """The number of bands of a task, which are staged one after the other."""
    steps: int
    """The number of steps of a band."""
    rows: int
    """The number of rows of a step."""


def weight_gradient_in_rows(workload: ConvWorkload, bands: Bands, block_r: int, lanes: int) -> list[te.Tensor]:
    """Return the TE definition for a CPU, in the stages "pad", "grad", "sums", "parts", "total" and "output".

    Returns dy (N, K, Ho, Wo), x (N, C, H, W) and the gradient (C, M, R, S). Each part of the planes of a channel has
    separate "sums" over all images, in `lanes` lanes; stages such as "folded_8" add upper lanes to lower ones, as
    `folds` lists them, and "parts" adds up the lanes that are left. `block_r` is the number of kernel rows whose sums
    are made together.
    """
    dy, x = placeholders(workload)
    (ho, wo), (kr, ks), m = workload.output_size, workload.kernel, workload.multiplier
    (sh, sw), (dh, dw), zero = workload.stride, workload.dilation, tirx.const(0, "float32")
    vectors, blocks = -(-wo // lanes), -(-kr // block_r)
    height, width = prod(bands), vectors * lanes
    surplus = blocks * block_r - kr  # rows by which the last block exceeds the kernel
    whole = (height - (-surplus * dh // sh), width)
    pad, _ = padded_input(x, workload, whole, dtype=None if workload.dtype == "float32" else "float32")

    def element(n: Any, k: Any, y: Any, v: Any) -> tirx.PrimExpr:
        tests = [index < size for index, size, padded in ((y, ho, height), (v, wo, width)) if size < padded]
        value = dy[n, k, y, v].astype("float32")
        return tirx.if_then_else(tirx.all(*tests), value, zero) if tests else value

    grad = te.compute((workload.batch, workload.out_channels, height, width), element, name="grad")
    n, vector = te.reduce_axis((0, workload.batch), name="n"), te.reduce_axis((0, vectors), name="vector")
    band, step = te.reduce_axis((0, bands.bands), name="band"), te.reduce_axis((0, bands.steps), name="step")
    row = te.reduce_axis((0, bands.rows), name="row")

    def product(k: Any, part: Any, ro: Any, r: Any, s: Any, lane: Any) -> tirx.PrimExpr:
        y = ((part * bands.bands + band) * bands.steps + step) * bands.rows + row
        v = vector * lanes + lane
        factor = pad[n, k // m, y * sh + (ro * block_r + r) * dh, v * sw + s * dw]
        return te.sum(grad[n, k, y, v] * factor, axis=[n, band, step, vector, row])

    sums = te.compute((workload.out_channels, bands.parts, blocks, block_r, ks, lanes), product, name="sums")
    for fewer in folds(lanes):
        sums = _folded(sums, fewer)
    lane, part = te.reduce_axis((0, sums.shape[-1]), name="lane"), te.reduce_axis((0, bands.parts), name="part")
    parts = te.compute(
        (workload.out_channels, bands.parts, kr, ks),
        lambda k, part, r, s: te.sum(sums[k, part, r // block_r, r % block_r, s, lane], axis=[lane]),
        name="parts",
    )
    total = te.compute(
        workload.w_shape, lambda c, q, r, s: te.sum(parts[c * m + q, part, r, s], axis=[part]), name="total"
    )
    return [dy, x, _stored(total, workload)]


def folds(lanes: int) -> list[int]:
    """Return the numbers of lanes that vectors of sums are folded to, in order; the last lanes are added one by one."""
    return [fewer for fewer in (8, 4) if fewer < lanes]


def _folded(sums: te.Tensor, lanes: int) -> te.Tensor:
    """Return the stage "folded_<lanes>", in which lane i is the sum of lanes i and i + `lanes`."""

    def value(*index: tirx.Var) -> tirx.PrimExpr:
        upper = (*index[:-1], index[-1] + lanes)
        return sums[index] + sums[upper]

    return te.compute((*sums.shape[:-1], lanes), value, name=f"folded_{lanes}")


class Shares(NamedTuple):
    """The taps whose sums a GPU thread keeps in a weight gradient, and the warps and blocks whose sums are added up."""

    block_r: int
    """The number of kernel rows whose sums a thread keeps in registers."""
    block_s: int
    """The number of kernel columns whose sums a thread keeps in registers."""
    warps: int
    """The number of warps of a block, which share its tiles."""
    parts: int
    """The number of thread blocks that share the tiles of an output channel."""

    def blocks(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the number of blocks of taps that the kernel is cut into, by rows and by columns."""
        return -(-workload.kernel[0] // self.block_r), -(-workload.kernel[1] // self.block_s)


class Tiles(NamedTuple):
    """The tiles of a GPU's threads in a weight gradient."""

    rows: int
    """The number of rows of dy in a tile, which is one column wide; a thread computes one tile at a time."""
    shares: Shares

    def window(self, workload: ConvWorkload) -> tuple[int, int]:
        """Return the number of rows and of columns of x that a tile reads."""
        more = 0 if self.rows == 1 else (self.rows - 1) * workload.stride[0]
        return more + self.shares.block_r, self.shares.block_s


def weight_gradient_in_tiles(workload: ConvWorkload, tiles: Tiles, warp: int) -> list[te.Tensor]:
    """Return the TE definition for a GPU.

    Its stages are "near_x", "wide_x", "window", "near_dy", "wide_dy", "grad" and those of `added_up`. Returns dy (N, K,
    Ho, Wo), x (N, C, H, W) and the gradient (C, M, R, S). The tiles of all images are numbered, and dealt to the lanes
    of a warp first, then to warps, parts and turns. A tile of several rows takes no dilation of rows. "near_x" and
    "near_dy" read at indices that are clamped into the operands, "wide_x" and "wide_dy" are the elements in float32,
    and "window" and "grad" have zeros instead of elements outside. So reads depend on no condition and are all in
    flight together, and one instruction selects: a compiler makes a branch of a conversion that is needed on a
    condition.
    """
    dy, x = placeholders(workload)
    (ho, wo), m, k_out = workload.output_size, workload.multiplier, workload.out_channels
    (sh, sw), (dh, dw), (top, left, _, _) = workload.stride, workload.dilation, workload.padding
    rows, shares = tiles
    block_r, block_s, warps, parts = shares
    plane, zero = -(-ho // rows) * wo, tirx.const(0, "float32")
    all_tiles = workload.batch * plane
    turns = (all_tiles + parts * warps * warp - 1) // (parts * warps * warp)

    def tile(p: Any, turn: Any, warp_index: Any, lane: Any) -> tuple[Any, Any, Any, Any]:
        """Return the number of a tile, its image, its first row and its column."""
        number = ((turn * parts + p) * warps + warp_index) * warp + lane
        known = tirx.min(number, all_tiles - 1)
        return number, known // plane, known % plane // wo * rows, known % wo

    def of_x(p: Any, ro: Any, so: Any, turn: Any, warp_index: Any, lane: Any, a: Any, b: Any) -> tuple[Any, Any, Any]:
        """Return the image of a tile, and the row and column in x of an element of its window."""
        _, n, y, v = tile(p, turn, warp_index, lane)
        row = y * sh + (ro * block_r + a) * (dh if rows == 1 else 1) - top
        return n, row, v * sw + (so * block_s + b) * dw - left

    def within(index: Any, size: int) -> Any:
        return tirx.max(tirx.min(index, size - 1), 0)

    def near_x(k: Any, *index: Any) -> tirx.PrimExpr:
        n, row, column = of_x(*index)
        return x[n, k // m, within(row, workload.height), within(column, workload.width)]

    def in_window(*index: Any) -> tirx.PrimExpr:
        _, row, column = of_x(*index[1:])
        inside = tirx.all(row >= 0, row < workload.height, column >= 0, column < workload.width)
        return tirx.Select(inside, wide_x[index], zero)

    def near_dy(k: Any, p: Any, turn: Any, warp_index: Any, lane: Any, a: Any) -> tirx.PrimExpr:
        _, n, y, v = tile(p, turn, warp_index, lane)
        return dy[n, k, tirx.min(y + a, ho - 1) if ho % rows else y + a, v]

    def of_dy(*index: Any) -> tirx.PrimExpr:
        *which, a = index
        number, _, y, _ = tile(*which[1:])
        inside = tirx.all(number < all_tiles, y + a < ho) if ho % rows else number < all_tiles
        return tirx.Select(inside, wide_dy[index], zero)

    blocks = shares.blocks(workload)
    window_shape = (k_out, parts, *blocks, turns, warps, warp, *tiles.window(workload))
    wide_x = widened(te.compute(window_shape, near_x, name="near_x"), "wide_x")
    window = te.compute(window_shape, in_window, name="window")
    nearest_dy = te.compute((k_out, parts, turns, warps, warp, rows), near_dy, name="near_dy")
    wide_dy = widened(nearest_dy, "wide_dy")
    grad = te.compute(nearest_dy.shape, of_dy, name="grad")
    turn, row = te.reduce_axis((0, turns), name="turn"), te.reduce_axis((0, rows), name="row")

    def product(k: Any, p: Any, ro: Any, so: Any, warp_index: Any, lane: Any, r: Any, s: Any) -> tirx.PrimExpr:
        factor = window[k, p, ro, so, turn, warp_index, lane, row * sh + r, s]
        return te.sum(grad[k, p, turn, warp_index, lane, row] * factor, axis=[turn, row])

    sums = te.compute((k_out, parts, *blocks, warps, warp, block_r, block_s), product, name="sums")
    return [dy, x, added_up(sums, workload, shares)]


def widened(tensor: te.Tensor, name: str) -> te.Tensor:
    """Return a stage with the elements of a tensor in float32."""
    return te.compute(tensor.shape, lambda *index: tensor[index].astype("float32"), name=name)


def added_up(sums: te.Tensor, workload: ConvWorkload, shares: Shares) -> te.Tensor:
    """Return the gradient from the sums of threads, in the stages "warps", "parts", "total" and "output".

    The axes of `sums` are (output channel, part, block of taps by row and by column, warp, lane, row and column of a
    tap). With one part there is no stage "total".
    """
    block_r, block_s, warps, parts = shares
    *outer, warp, _, _ = sums.shape
    lane, warp_index = te.reduce_axis((0, warp), name="lane"), te.reduce_axis((0, warps), name="own")

    def of_warp(*index: Any) -> tirx.PrimExpr:
        of_lane = (*index[:-2], lane, *index[-2:])
        return te.sum(sums[of_lane], axis=[lane])

    of_warps = te.compute((*outer, block_r, block_s), of_warp, name="warps")

    def of_part(c: Any, q: Any, r: Any, s: Any, p: Any) -> tirx.PrimExpr:
        k = c * workload.multiplier + q
        return te.sum(
            of_warps[k, p, r // block_r, s // block_s, warp_index, r % block_r, s % block_s], axis=[warp_index]
        )

    if parts == 1:
        return _stored(te.compute(workload.w_shape, lambda c, q, r, s: of_part(c, q, r, s, 0), name="parts"), workload)
    of_parts = te.compute((*workload.w_shape, parts), of_part, name="parts")
    p = te.reduce_axis((0, parts), name="p")
    total = te.compute(workload.w_shape, lambda c, q, r, s: te.sum(of_parts[c, q, r, s, p], axis=[p]), name="total")
    return _stored(total, workload)


def placeholders(workload: ConvWorkload) -> tuple[te.Tensor, te.Tensor]:
    """Return placeholders for dy (N, K, Ho, Wo) and x (N, C, H, W)."""
    return (
        te.placeholder(workload.output_shape, workload.dtype, name="dy"),
        te.placeholder(workload.x_shape, workload.dtype, name="x"),
    )


def _stored(total: te.Tensor, workload: ConvWorkload) -> te.Tensor:
    return te.compute(workload.w_shape, lambda *index: total[index].astype(workload.dtype), name="output")


def weight_gradient_reference(workload: ConvWorkload, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the gradient (C, M, R, S) in float64 NumPy, tap by tap."""
    (top, left, bottom, right), (sh, sw), (dh, dw) = workload.padding, workload.stride, workload.dilation
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    n, c, (ho, wo) = workload.batch, workload.in_channels, workload.output_size
    grouped = dy.astype(np.float64).reshape(n, c, workload.multiplier, ho, wo)
    gradient = np.zeros(workload.w_shape)
    for r, s in np.ndindex(*workload.kernel):
        rows = slice(r * dh, r * dh + (ho - 1) * sh + 1, sh)
        columns = slice(s * dw, s * dw + (wo - 1) * sw + 1, sw)
        gradient[..., r, s] = np.einsum("ncqyx,ncyx->cq", grouped, padded[..., rows, columns])
    return gradient
