"""Convolution as a matrix product for tensor cores, whose sums lie in the registers of the threads of warps.

The product is `O[p, k] = sum over taps and c of I[p, tap, c] * F[k, tap, c]`, where p counts the output pixels of all
images, and I[p, tap, c] is the input that pixel p reads under a tap. Operands have their channels last in memory, so
that a chunk of the reduction is contiguous in both.

A tensor core takes 8 x 8 matrices apart over the threads of a warp as the PTX manual says of `mma.m16n8k16` and
`wgmma` (section "Matrix Fragments"): thread (r, q) of 8 x 4 has two neighbouring columns of row r, and of row r + 8.
That order of registers is made of axes here: row `m = (((warp * I + i) * W + w) * 2 + h) * 8 + r` and column
`n = ((warp * J + j) * 4 + q) * 2 + e` of a block's tile, where W warps work on one instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from typing import Any

from msgspec import structs
from tvm import te, tirx

from ..workload import ConvWorkload
from .epilogue import epilogue, epilogue_operands

ROW_BYTES = 128
"""The bytes of a chunk of the reduction in a row of shared memory: what eight threads copy with 16 bytes each."""

COPY_BYTES = 16
"""The bytes of the widest asynchronous copy."""


@dataclass(frozen=True)
class FragmentTile:
    """A block's tile of the product, and the part of it that is in the registers of each of its threads."""

    warps_m: int
    """The number of groups of `width` warps along the pixels."""
    warps_n: int
    """The number of them along the output channels."""
    width: int
    """The number of warps that work on one instruction: 4 for `wgmma`, 1 for `mma`."""
    tiles_m: int
    """The number of instructions of a group of warps along the pixels, with `16 * width` of them each."""
    tiles_n: int
    """The number of matrices of 8 output channels of a group of warps."""

    @property
    def block_m(self) -> int:
        """The number of pixels of a block."""
        return self.warps_m * self.tiles_m * self.width * 16

    @property
    def block_n(self) -> int:
        """The number of output channels of a block."""
        return self.warps_n * self.tiles_n * 8

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * self.width * 32

    @property
    def rows(self) -> tuple[int, ...]:
        """The extents of the axes of a row of the tile."""
        return self.warps_m, self.tiles_m, self.width, 2, 8

    @property
    def columns(self) -> tuple[int, ...]:
        """The extents of the axes of a column of the tile."""
        return self.warps_n, self.tiles_n, 4, 2


def number(place: Sequence[Any], extents: Sequence[int]) -> Any:
    """Return the number of a place, a row-major one, on axes of these extents."""
    return reduce(lambda outer, axis: outer * axis[1] + axis[0], zip(place, extents, strict=True), 0)


def place_of(number: Any, extents: Sequence[int]) -> list[Any]:
    """Return the place with a number on axes of these extents."""
    inner = [prod(extents[axis + 1 :]) for axis in range(len(extents))]
    return [number // size % extent for size, extent in zip(inner, extents, strict=True)]


def chunk_elements(workload: ConvWorkload) -> int:
    """Return the number of terms of a chunk of the reduction."""
    return ROW_BYTES // workload.itemsize


def chunks(workload: ConvWorkload) -> int:
    """Return the number of chunks of the reduction, the last of which may be in part zeros.

    Where channels are whole chunks a chunk is of one tap, else it goes on with the next tap.
    """
    return -(-prod(workload.kernel) * workload.w_shape[1] // chunk_elements(workload))


TF32_BITS = 13
"""The last bits of a float32 number that a TF32 number lacks."""


def in_tf32(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a float32 number rounded to the nearest TF32 number; one that would become infinite is cut off."""
    half, mask = 1 << (TF32_BITS - 1), -(1 << TF32_BITS)
    bits = tirx.reinterpret("int32", value)
    up = tirx.reinterpret("float32", (bits + half) & mask)
    infinite = tirx.abs(up) == tirx.max_value("float32") + tirx.max_value("float32")
    return tirx.Select(infinite, tirx.reinterpret("float32", bits & mask), up)


def laid_out(w: te.Tensor, workload: ConvWorkload, split: int) -> te.Tensor:
    """Return the stage "laid": the weight (max(1, split), K, R, S, C / groups), as TF32 numbers that add up to it.

    The second one is the rest that the first leaves. With a `split` of 0 the weight stays in its own type.
    """
    k, c, r, s = workload.w_shape

    def value(number: tirx.Var, *place: tirx.Var) -> tirx.PrimExpr:
        element = w[workload.weight_layout.place(place[0], place[3], place[1], place[2])]
        if split == 0:
            return element
        high = in_tf32(element)
        return high if split == 1 else tirx.Select(number == 0, high, in_tf32(element - high))

    return te.compute((max(1, split), k, r, s, c), value, name="laid")


def tensor_gemm(workload: ConvWorkload, tile: FragmentTile, parts: int, split: int = 0) -> list[te.Tensor]:
    """Return the TE definition, in the stages "columns", "weights", "product", "tile", "sums" and "output".

    Returns x (N, H, W, C), w (K, R, S, C / groups), what the epilogue reads, and the output (1, 1, N * Ho * Wo, K) that
    lies in memory as (N, Ho, Wo, K). The channels of a group, of the input and of the output, have to fill whole copies
    of `COPY_BYTES`, and with several groups the output's whole tiles.

    With a `split`, or a weight in KCRS, there is the stage `laid_out` first. "weights" then are the first of its
    numbers, and a stage "rests" has the second.

    "columns" and "weights" are the factors in chunks of `ROW_BYTES`, zero past the last pixel, channel and term. They
    are (pixel tiles, groups, chunks, rows of a tile, copies, elements) and (channel tiles, chunks, ...): the tiles of
    output channels count those of all groups. "product" has the sums of each of the `parts` of the chunks in the order
    of registers, "tile" in the order of memory, and "sums" leaves out what is past the end.
    """
    flat = structs.replace(  # what the epilogue has to know: a row of pixels with the channels of the output
        workload,
        batch=1,
        in_channels=workload.groups,
        w_layout="KCRS",
        height=1,
        width=workload.batch * prod(workload.output_size),
        kernel=(1, 1),
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(*workload.operands["w"], name="w")
    operands = epilogue_operands(flat)
    vector = COPY_BYTES // workload.itemsize
    vectors = ROW_BYTES // COPY_BYTES
    pixels, channels, depth = flat.width, workload.multiplier, workload.w_shape[1]
    taps, terms = prod(workload.kernel), prod(workload.kernel) * depth
    count = -(-chunks(workload) // parts)
    tiles_m, tiles_n = -(-pixels // tile.block_m), -(-channels // tile.block_n)
    (height, width), (sh, sw), (dh, dw) = workload.output_size, workload.stride, workload.dilation
    top, left, _, _ = workload.padding
    sum_type, zero = workload.storage.sums, tirx.const(0, x.dtype)
    whole = depth % (vector * vectors) == 0

    def term(chunk: tirx.PrimExpr, copy: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Return the tap and the channel of the first element of a copy."""
        if whole:
            per_tap = depth // (vectors * vector)
            return chunk // per_tap, (chunk % per_tap * vectors + copy) * vector
        first = (chunk * vectors + copy) * vector
        return first // depth, first % depth

    def ends(tap: tirx.PrimExpr) -> list[tirx.PrimExpr]:
        """Return the test that a term is not past the last one, if some are."""
        return [tap < taps] if count * parts * vector * vectors > terms else []

    def column(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, g, chunk, *row_axes, copy, lane = axes
        p = pt * tile.block_m + number(row_axes, tile.rows)
        inside = [] if pixels % tile.block_m == 0 else [p < pixels]
        tap, c = term(chunk, copy)
        row = p % (height * width) // width * sh + tap // workload.kernel[1] * dh - top
        col = p % width * sw + tap % workload.kernel[1] * dw - left
        if workload.padded_input != (workload.height, workload.width):
            inside += [row >= 0, row < workload.height, col >= 0, col < workload.width]
        inside += ends(tap)
        value = x[p // (height * width), row, col, g * depth + c + lane]
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    shape = (tiles_m, workload.groups, count * parts, *tile.rows, vectors, vector)
    columns = te.compute(shape, column, name="columns")

    laid = laid_out(w, workload, split) if split or workload.w_layout == "KCRS" else None
    eights = (*tile.columns[:2], 8)
    tiles = workload.groups * tiles_n

    def weights_of(summand: int, name: str) -> te.Tensor:
        def weight(*axes: tirx.Var) -> tirx.PrimExpr:
            kt, chunk, *column_axes, copy, lane = axes
            k = kt * tile.block_n + number(column_axes, eights)
            inside = [] if workload.out_channels % tile.block_n == 0 else [k < workload.out_channels]
            tap, c = term(chunk, copy)
            inside += ends(tap)
            place = [k, tap // workload.kernel[1], tap % workload.kernel[1], c + lane]
            source = w if laid is None else laid
            value = source[tuple(place if laid is None else [summand, *place])]
            return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

        return te.compute((tiles, count * parts, *eights, vectors, vector), weight, name=name)

    factors = [weights_of(summand, name) for summand, name in enumerate(("weights", "rests")[: max(1, split)])]
    chunk = te.reduce_axis((0, count), name="chunk")
    copy = te.reduce_axis((0, vectors), name="copy")
    lane = te.reduce_axis((0, vector), name="lane")

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        part, pt, kt, wm, wn, v, r, q, i, j, h, e = axes
        at = part * count + chunk
        element = columns[pt, kt // tiles_n, at, wm, i, v, h, r, copy, lane].astype(sum_type)
        weight = reduce(add, (each[kt, at, wn, j, q * 2 + e, copy, lane].astype(sum_type) for each in factors))
        return te.sum(element * weight, axis=[chunk, copy, lane])

    (wm, i, v, h, r), (wn, j, q, e) = tile.rows, tile.columns
    product = te.compute((parts, tiles_m, tiles, wm, wn, v, r, q, i, j, h, e), accumulate, name="product")

    def in_rows(*axes: tirx.Var) -> tirx.PrimExpr:
        part, pt, kt, wm, i, v, h, r, wn, j, q, e = axes
        return product[part, pt, kt, wm, wn, v, r, q, i, j, h, e]

    tiled = te.compute((parts, tiles_m, tiles, *tile.rows, *tile.columns), in_rows, name="tile")

    def exact(part: tirx.Var, p: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        m, n = place_of(p % tile.block_m, tile.rows), place_of(k % tile.block_n, tile.columns)
        place = (part, p // tile.block_m, k // tile.block_n, *m, *n)
        return tiled[place]

    sums = te.compute((parts, pixels, workload.out_channels), exact, name="sums")
    part = te.reduce_axis((0, parts), name="part")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, p: tirx.Var) -> tirx.PrimExpr:
        return sums[0, p, k] if parts == 1 else te.sum(sums[part, p, k], axis=part)

    planes = te.compute(flat.output_shape, gather, name="planes")
    return [x, w, *operands.values(), epilogue(planes, flat, operands)]
