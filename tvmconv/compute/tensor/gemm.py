"""Convolution as a matrix product for tensor cores, whose sums lie in the registers of the threads of warps.

The product is `O[p, k] = sum over taps and c of I[p, tap, c] * F[k, tap, c]`, where p counts the output pixels of all
images, and I[p, tap, c] is the input that pixel p reads under a tap. Its factors have their channels last in memory, so
that a chunk of the reduction is contiguous in both; operands in another layout are laid out so first.

With few input channels, as in a first layer, a tap would be more padding than channels. There the input is laid out as
in the im2win thesis: the elements of a row of a window, (S, C), are contiguous, and count as the channels of one tap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from math import prod
from operator import add
from typing import NamedTuple

from tvm import te, tirx

from tvmconv.problem.dtypes import INFINITY, MAGNITUDE
from tvmconv.problem.workload import ConvWorkload

from ..dense.packing import weighted_zero
from ..epilogue import epilogue, epilogue_operands, epilogue_value, in_layout, with_flat_pixels
from ..open_sizes import is_whole, pixel_tiles
from .chunks import (
    ROW_BYTES,
    VECTORS,
    chunks,
    chunks_of_tap,
    copied_elements,
    depth,
    lays_out_input,
    lays_out_weight,
    pads_input,
    read_image,
    reads_windows,
)
from .fragments import FragmentTile, index_of, row_major_number

LOST_BITS = 13
"""The number of last bits of a float32 number that a TF32 number lacks."""

NAN = 0x7FC00000
"""The bits of a NaN of float32."""


def in_tf32(value: tirx.PrimExpr) -> tirx.PrimExpr:
    """Return a float32 number rounded to the nearest TF32 number; one that would become infinite is cut off."""

    def const(number: int) -> tirx.PrimExpr:
        return tirx.const(number, "uint32")

    bits = tirx.reinterpret("uint32", value)
    mask = const(2**32 - 2**LOST_BITS)
    up = (bits + const(2 ** (LOST_BITS - 1))) & mask
    finite = tirx.Select((up & const(MAGNITUDE)) == const(INFINITY), bits & mask, up)
    return tirx.reinterpret("float32", tirx.Select((bits & const(MAGNITUDE)) > const(INFINITY), const(NAN), finite))


def finishes_early(workload: ConvWorkload, split_k: int) -> bool:
    """Return whether the epilogue is computed on sums in registers: of one part, and without a residual."""
    return split_k == 1 and not workload.epilogue.residual


class TensorForm(NamedTuple):
    """The form of a product for tensor cores, beside its tiles: see `tensor_gemm`."""

    split_k: int = 1
    """The number of parts of the reduction, whose sums are added up afterwards."""
    weight_parts: int = 0
    """The number of TF32 numbers that add up to each weight; 0 where the weight is multiplied as it is."""
    in_tile: bool = False
    """True if the parts of a tile are added up before "sums"."""
    by_tap: bool = False
    """True if no chunk spans two taps."""
    rounds_input: bool = False
    """True if a separate kernel rounds the input to TF32 numbers."""
    weight_is_x: bool = False
    """True if the workload's x is the problem's weight, and its w the problem's input."""


def tensor_gemm(workload: ConvWorkload, tile: FragmentTile, form: TensorForm) -> list[te.Tensor]:
    """Return the TE definition, in the stages "columns", "weights", "product", "tile", "sums", "planes" and "output".

    Returns x and w in the workload's layouts, the epilogue's operands, and the output, whose pixels are one row: in
    NHWC it is (1, 1, N * Ho * Wo, K), in NCHW (N, K, 1, Ho * Wo).

    Where `lays_out_input` and `lays_out_weight` say so there are the stages "image", (N, H, W, C') with whole copies of
    channels for each group, and "packed", (max(1, split), K, R, S, C'): the weight, or as many TF32 numbers that add up
    to it, in the order of the product's columns. The second of two such numbers are in a stage "rests" beside
    "weights". Sizes are those of `read_image`. With `rounds_input` there is always an "image", of TF32 numbers.

    "columns" and "weights" are the factors in chunks of `ROW_BYTES`, zero past the last pixel, channel and term; with
    `by_tap` each chunk is of one tap, and zero past the tap's last channel. They are (pixel tiles, groups, chunks, rows
    of a tile, copies, elements) and (channel tiles, chunks, ...), where channel tiles are those of all groups.
    "product" has the sums of each of the `split_k` of the chunks in the order of registers, "tile" in the order of
    memory, and "sums" without elements past the end. Where x has a zero point, "sums" subtracts a stage "offsets" of
    (K,): the zero point times the sum of a channel's weights. Parts are added up in "planes", or with `in_tile` already
    in "sums", which then has one part and reads the others by way of a stage "fetched": (parts, pixel tiles, channel
    tiles, rows, columns). Where `finishes_early` is true "tile" has the epilogue's results instead, in the output's
    type.

    With `weight_is_x` the workload's x is the problem's weight, and its w the problem's input: the
    epilogue's vectors are along the pixels of one image, and w is returned first.
    """
    flat, weight_is_x = with_flat_pixels(workload), form.weight_is_x
    first, second = ("w", "x") if weight_is_x else ("x", "w")
    x = te.placeholder(*workload.operands["x"], name=first)
    w = te.placeholder(*workload.operands["w"], name=second)
    operands = epilogue_operands(flat, weight_is_x)
    sums = tensor_sums(x, w, operands, workload, tile, form)
    left = sums.shape[0]
    part = te.reduce_axis((0, left), name="part")

    def gather(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        p = v if isinstance(flat.batch, int) and flat.batch == 1 else n * flat.width + v
        g, of_group = k // workload.multiplier, k % workload.multiplier
        return sums[0, p, g, of_group] if left == 1 else te.sum(sums[part, p, g, of_group], axis=part)

    planes = te.compute(flat.output_shape, gather, name="planes")
    early = finishes_early(workload, form.split_k)
    output = in_layout(planes, flat) if early else epilogue(planes, flat, operands, weight_is_x)
    return [*((w, x) if weight_is_x else (x, w)), *operands.values(), output]


def tensor_sums(
    x: te.Tensor,
    w: te.Tensor,
    operands: Mapping[str, te.Tensor],
    workload: ConvWorkload,
    tile: FragmentTile,
    form: TensorForm,
) -> te.Tensor:
    """Return the stage "sums" of `tensor_gemm`, (parts left, N * Ho * Wo, groups, K / groups), after those before.

    The factors may be stages themselves. The epilogue's operands are read where `finishes_early` is true.
    """
    flat = with_flat_pixels(workload)
    split_k, weight_parts, in_tile, by_tap, rounds_input, weight_is_x = form
    count = -(-chunks(workload, by_tap) // split_k)
    columns = _columns(x, workload, tile, count * split_k, by_tap, rounds_input)
    factors = _weights(w, workload, tile, count * split_k, by_tap, weight_parts)
    tiles_m, tiles = columns.shape[0], int(factors[0].shape[0])
    sum_type = workload.storage.sums
    chunk = te.reduce_axis((0, count), name="chunk")
    copy = te.reduce_axis((0, VECTORS), name="copy")
    lane = te.reduce_axis((0, copied_elements(workload)), name="lane")

    def accumulate(*axes: tirx.Var) -> tirx.PrimExpr:
        part, pt, kt, wm, wn, v, r, q, i, j, h, e = axes
        at = part * count + chunk
        pixel, channel = tile.transposed((wm, i, v, h, r), (wn, j, q * 2 + e))
        element = columns(pt, kt // (tiles // workload.groups), at, *pixel, copy, lane).astype(sum_type)
        weight = reduce(add, (each(kt, at, *channel, copy, lane).astype(sum_type) for each in factors))
        first, second = tile.transposed(element, weight)  # the factor of rows is read first, as products expect it
        return te.sum(first * second, axis=[chunk, copy, lane])

    product = te.compute((split_k, tiles_m, tiles, *tile.registers), accumulate, name="product")

    early, per_group = finishes_early(workload, split_k), tiles // workload.groups
    offsets = weighted_zero(w, workload, workload.zero_point) if workload.zero_point else None

    def in_rows(*axes: tirx.Var) -> tirx.PrimExpr:
        (part, pt, kt), row, column = axes[:3], axes[3:8], axes[8:]
        y = product(part, pt, kt, *tile.register(row, column))
        if not early:
            return y
        pixel, channel = tile.transposed(row, column)
        if weight_is_x:
            index, limit = pt * tile.block_m + row_major_number(pixel, tile.pixels), flat.width
            begin, whole = 0, is_whole(limit, tile.block_m)
        else:
            index, limit = kt % per_group * tile.block_n + row_major_number(channel, tile.channels), workload.multiplier
            begin, whole = kt // per_group * limit, limit % tile.block_n == 0

        def of_channel(numbers: te.Tensor) -> tirx.PrimExpr:
            # Results past the last channel are not stored, and use its number: a condition TVM would repeat with each
            # use of the result, four times for a minimum and a maximum.
            return numbers[begin + (index if whole else tirx.min(index, limit - 1))]

        y = y if offsets is None else y - of_channel(offsets)
        return epilogue_value(y, flat, {name: of_channel(numbers) for name, numbers in operands.items()})

    tiled = te.compute((split_k, tiles_m, tiles, *tile.rows, *tile.columns), in_rows, name="tile")

    def in_matrix(part: tirx.Var, pt: tirx.Var, kt: tirx.Var, m: tirx.PrimExpr, n: tirx.PrimExpr) -> tirx.PrimExpr:
        row, column = tile.transposed(index_of(m, tile.pixels), index_of(n, tile.channels))
        return tiled(part, pt, kt, *row, *column)

    fetched = None
    if in_tile:
        fetched = te.compute((split_k, tiles_m, tiles, tile.block_m, tile.block_n), in_matrix, name="fetched")

    def exact(part: tirx.Var, p: tirx.Var, g: tirx.Var, k: tirx.Var) -> tirx.PrimExpr:
        index = p // tile.block_m, g * per_group + k // tile.block_n, p % tile.block_m, k % tile.block_n
        if fetched is None:
            total = in_matrix(part, *index)
        else:
            total = reduce(add, (fetched(each, *index) for each in range(split_k)))
        if offsets is None or early:
            return total
        offset = offsets[g * workload.multiplier + k]
        return total - (offset if left == 1 else tirx.if_then_else(part == 0, offset, zero))

    zero = tirx.const(0, sum_type)
    left = 1 if in_tile else split_k
    shape = (left, flat.batch * flat.width, workload.groups, workload.multiplier)
    return te.compute(shape, exact, name="sums")


def _columns(
    x: te.Tensor, workload: ConvWorkload, tile: FragmentTile, count: int, by_tap: bool, rounds: bool
) -> te.Tensor:
    """Return the stage "columns" with `count` chunks, after "image" if there is one."""
    given, workload = workload, read_image(workload)
    channels, group_channels, lanes = depth(workload), workload.w_shape[1], copied_elements(workload)
    windows, padded, outside = reads_windows(given), pads_input(given), tirx.const(given.zero_point, x.dtype)
    batch, groups, pixels = workload.batch, workload.groups, workload.batch * prod(given.output_size)
    (height, width), (sh, sw), (dh, dw) = given.output_size, workload.stride, workload.dilation
    top, left, _, _ = workload.padding
    zero = tirx.const(0, x.dtype)

    def element(n: tirx.Var, h: tirx.Var, v: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        row = h - given.padding[0] if padded else h
        if windows:
            col = v * given.stride[1] + c // given.in_channels * given.dilation[1] - given.padding[1]
            channel = c % given.in_channels
        else:
            col = v - given.padding[1] if padded else v
            channel = c // channels * group_channels + c % channels
        value = x[given.x_layout.memory_index(n, channel, row, col)]
        value = in_tf32(value) if rounds else value
        inside = [row >= 0, row < given.height] if padded else []
        if padded or (windows and any(given.padding[1::2])):
            inside += [col >= 0, col < given.width]
        value = tirx.if_then_else(tirx.all(*inside), value, outside) if inside else value
        return value if group_channels == channels else tirx.if_then_else(c % channels < group_channels, value, zero)

    image = None
    if rounds or lays_out_input(given):
        image = te.compute((batch, workload.height, workload.width, groups * channels), element, name="image")

    def column(*axes: tirx.Var) -> tirx.PrimExpr:
        pt, g, chunk, *row_axes, copy, lane = axes
        p = pt * tile.block_m + row_major_number(row_axes, tile_rows)
        tap, c = _term(workload, chunk, copy, by_tap)
        row = p // width % height * sh + tap // workload.kernel[1] * dh - top
        col = p % width * sw + tap % workload.kernel[1] * dw - left
        inside = [] if is_whole(pixels, tile.block_m) else [p < pixels]
        if any(workload.padding):
            inside += [row >= 0, row < workload.height, col >= 0, col < workload.width]
        inside += _within_terms(workload, tap, c, count, by_tap)
        n, channel = p // width // height, g * channels + c + lane
        value = (
            x[workload.x_layout.memory_index(n, channel, row, col)] if image is None else image[n, row, col, channel]
        )
        return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

    tiles, (tile_rows, _) = pixel_tiles(given, tile.block_m), tile.factors
    return te.compute((tiles, groups, count, *tile_rows, VECTORS, lanes), column, name="columns")


def _weights(
    w: te.Tensor, workload: ConvWorkload, tile: FragmentTile, count: int, by_tap: bool, weight_parts: int
) -> list[te.Tensor]:
    """Return the stages "weights" and, of a weight in two numbers, "rests", after "packed" if there is one."""
    given, workload = workload, read_image(workload)
    channels, group_channels, lanes = depth(workload), workload.w_shape[1], copied_elements(workload)
    (_, columns), zero = workload.kernel, tirx.const(0, w.dtype)

    def element(summand: tirx.Var, k: tirx.Var, r: tirx.Var, s: tirx.Var, c: tirx.Var) -> tirx.PrimExpr:
        tap, channel = (c // given.in_channels, c % given.in_channels) if reads_windows(given) else (s, c)
        value = w[given.weight_layout.memory_index(tile.channel_at(k), channel, r, tap)]
        if weight_parts:
            high = in_tf32(value)
            # TVM simplifies indices by the condition, and a `Select` would read at the indices of both alternatives.
            value = high if weight_parts == 1 else tirx.if_then_else(summand == 0, high, in_tf32(value - high))
        return value if group_channels == channels else tirx.if_then_else(c < group_channels, value, zero)

    packed = None
    if lays_out_weight(given, weight_parts):
        shape = (max(1, weight_parts), workload.out_channels, *workload.kernel, channels)
        packed = te.compute(shape, element, name="packed")

    def stage(summand: int, name: str) -> te.Tensor:
        def weight(*axes: tirx.Var) -> tirx.PrimExpr:
            kt, chunk, *row_axes, copy, lane = axes
            index = kt % per_group * tile.block_n + row_major_number(row_axes, tile_rows)
            k = kt // per_group * workload.multiplier + index
            tap, c = _term(workload, chunk, copy, by_tap)
            inside = [] if workload.multiplier % tile.block_n == 0 else [index < workload.multiplier]
            inside += _within_terms(workload, tap, c, count, by_tap)
            r, s = tap // columns, tap % columns
            if packed is None:
                value = w[workload.weight_layout.memory_index(k, c + lane, r, s)]
            else:
                value = packed[summand, k, r, s, c + lane]
            return tirx.if_then_else(tirx.all(*inside), value, zero) if inside else value

        return te.compute((tiles, count, *tile_rows, VECTORS, lanes), weight, name=name)

    _, tile_rows = tile.factors
    per_group = -(-workload.multiplier // tile.block_n)
    tiles = workload.groups * per_group
    return [stage(summand, name) for summand, name in enumerate(("weights", "rests")[: max(1, weight_parts)])]


def _term(
    workload: ConvWorkload, chunk: tirx.PrimExpr, copy: tirx.PrimExpr, by_tap: bool
) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
    """Return the tap and the channel of the first element of a copy."""
    lanes, channels = copied_elements(workload), depth(workload)
    if by_tap or channels % (VECTORS * lanes) == 0:
        per_tap = chunks_of_tap(workload)
        return chunk // per_tap, (chunk % per_tap * VECTORS + copy) * lanes
    first = (chunk * VECTORS + copy) * lanes
    return first // channels, first % channels


def _within_terms(
    workload: ConvWorkload, tap: tirx.PrimExpr, c: tirx.PrimExpr, count: int, by_tap: bool
) -> list[tirx.PrimExpr]:
    """Return the test that a term is not past the end of a tap, or of all taps, if `count` chunks reach beyond it."""
    taps = prod(workload.kernel)
    if by_tap:
        return [c < depth(workload)] if depth(workload) * workload.itemsize % ROW_BYTES else []
    return [tap < taps] if count * ROW_BYTES > taps * depth(workload) * workload.itemsize else []
