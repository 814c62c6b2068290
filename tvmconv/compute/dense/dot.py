"""Direct convolution of integers or bfloat16 numbers, as sums of products of a few neighbouring channels at a time.

c runs over the C / groups input channels of the group that k belongs to, filled up to whole instructions with zeros:
`O[n, k, h, w] = sum over c, r, s of X[n, c, h*sh + r*dh, w*sw + s*dw] * F[k, c, r, s] - zero * sum over c, r, s of F`,
where X is x in the type of the instruction's first factor, and zero the number in it that stands for zero.
"""

from __future__ import annotations

from math import prod

from msgspec import structs
from tvm import te, tirx

from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.layout import Layout, data_layout
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import DotInstruction

from ..epilogue import epilogue, epilogue_operands
from .packing import in_groups, in_type, packed_weight, weighted_zero

SIGN = 128
"""The offset between the int8 and the uint8 number with the same low seven bits: flipping the first bit adds or
subtracts it."""


def as_factor(value: tirx.PrimExpr, dtype: str, first: str, zero_point: int) -> tirx.PrimExpr:
    """Return an element of x as an instruction's factor: unchanged, less its zero point, or with its sign flipped."""
    if dtype == first:
        return value
    if first not in QUANTIZED:
        number = in_type(value, dtype, first)
        return number - tirx.const(zero_point, first) if zero_point else number
    return tirx.reinterpret(first, value) ^ tirx.const(SIGN if first == "uint8" else -SIGN, first)


def as_term(factor: tirx.PrimExpr, dtype: str, sums: str) -> tirx.PrimExpr:
    """Return a factor in the type of the sums; a uint16 factor is the upper half of the bits of a float32 number."""
    if dtype != "uint16":
        return factor.astype(sums)
    return tirx.reinterpret(sums, factor.astype("uint32") << tirx.const(16, "uint32"))


def zero_of(workload: ConvWorkload, first: str) -> int:
    """Return the number that stands for zero among factors of the type `first`; padding is filled with it."""
    if first not in QUANTIZED:
        return 0
    return workload.zero_point + SIGN * ((workload.dtype == "int8") - (first == "int8"))


def depth(workload: ConvWorkload, terms: int) -> int:
    """Return the number of input channels of a group, rounded up to whole instructions."""
    return -(-workload.w_shape[1] // terms) * terms


def is_row(workload: ConvWorkload) -> bool:
    """Return whether the rows of a plane can be joined into one: for a 1x1 kernel with stride 1 and without padding."""
    return workload.kernel == workload.stride == (1, 1) and not any(workload.padding)


def staged_layout(workload: ConvWorkload, terms: int) -> Layout:
    """Return the layout of the stage "pad" in which the `terms` channels of one instruction are adjacent."""
    return data_layout(f"NCHW{terms}c") if workload.layout == "NCHW" and terms > 1 else workload.x_layout


def dot(
    workload: ConvWorkload,
    instruction: DotInstruction,
    tile: tuple[int, int, int],
    group_depth: int,
    staged: Layout | None,
    rows_of: ConvWorkload | None = None,
) -> list[te.Tensor]:
    """Return the TE definition, in the stages "pad", "packed", "offsets", "dot", "sums", "groups" and "output".

    Returns the operands in the order of `workload.operands`. Where `is_row` is true the rows of a plane are joined: x
    is (N, C, 1, H * W), and the output (N, K, 1, H * W). Sums of integers are exact.

    `tile` rounds the channels, rows and columns of "dot" up to whole tiles, and `group_depth` is the number of input
    channels of a group, rounded up to whole instructions. With `staged`, a layout, there is the stage "pad" in that
    layout, with `group_depth` channels for each group and zeros around planes; else the sums read x directly, and
    outputs past the end of a plane read what its last outputs read. "packed" is the weight in blocks of the tile's
    channels. "offsets", (K,), is the sum of each filter's weights times the number that stands for zero; "sums"
    subtracts it, or "groups", which is there with several groups. Where that number is 0 there are neither "offsets"
    nor "sums".

    With `rows_of` the workload is `with_rows_as_channels(rows_of)`, while x and w are the operands of `rows_of`: "pad"
    and the stage "filter_rows" convert them.
    """
    if is_row(workload):
        workload = structs.replace(workload, height=1, width=prod(workload.output_size))
    given = rows_of or workload
    x = te.placeholder(*given.operands["x"], name="x")
    w = given_w = te.placeholder(given.w_shape, given.storage.weight, name="w")
    if rows_of is not None:
        w = filter_rows(w, rows_of, workload)
    operands = epilogue_operands(workload)
    block, rows, columns = tile
    sizes = workload.output_size
    height, width = (-(-size // step) * step for size, step in zip(sizes, (rows, columns), strict=True))
    packed = packed_weight(w, workload, block, group_depth, instruction.second)
    channels = int(packed.shape[0]) * block
    layout, size = staged or workload.x_layout, workload.read_by((height, width))
    source = padded_factors(x, workload, instruction, layout, size, group_depth, rows_of) if staged else x
    (sh, sw), (dh, dw) = workload.stride, workload.dilation
    c = te.reduce_axis((0, group_depth), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def within(index: tirx.PrimExpr, size: int, rounded: int) -> tirx.PrimExpr:
        return index if staged or size == rounded else te.min(index, size - 1)

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        channel = c if workload.groups == 1 else k // (channels // workload.groups) * c.dom.extent + c
        row, column = within(h, sizes[0], height) * sh + r * dh, within(v, sizes[1], width) * sw + s * dw
        element = source[layout.memory_index(n, channel, row, column)]
        if not staged:
            element = as_factor(element, workload.dtype, instruction.first, workload.zero_point)
        weight = as_term(packed[k // block, c, r, s, k % block], instruction.second, instruction.sums)
        return te.sum(as_term(element, instruction.first, instruction.sums) * weight, axis=[c, r, s])

    sums = te.compute((workload.batch, channels, height, width), accumulate, name="dot")
    zero = zero_of(workload, instruction.first)
    offsets = weighted_zero(w, workload, zero) if zero else None
    return [x, given_w, *operands.values(), epilogue(in_groups(sums, workload, offsets), workload, operands)]


def with_rows_as_channels(workload: ConvWorkload) -> ConvWorkload:
    """Return an equivalent convolution whose input channels are the taps of a kernel row, in all input channels.

    It reads a copy of x in which neighbouring windows repeat the columns that they share: the im2win layout along rows.
    So few channels, such as the three of an image, fill a tile of AMX.
    """
    (top, _, bottom, _), (r, s) = workload.padding, workload.kernel
    return structs.replace(
        workload,
        in_channels=workload.in_channels * s,
        width=workload.output_size[1],
        kernel=(r, 1),
        stride=(workload.stride[0], 1),
        padding=(top, 0, bottom, 0),
        dilation=(workload.dilation[0], 1),
        layout="NCHW",
        w_layout="KCRS",
    )


def filter_rows(w: te.Tensor, workload: ConvWorkload, rows: ConvWorkload) -> te.Tensor:
    """Return the stage "filter_rows": w in the shape of `with_rows_as_channels`, the taps of a channel adjacent."""
    taps = workload.kernel[1]

    def value(k: tirx.Var, q: tirx.Var, r: tirx.Var, s: tirx.Var) -> tirx.PrimExpr:
        return w[workload.weight_layout.memory_index(k, q // taps, r, q % taps + s)]

    return te.compute(rows.w_shape, value, name="filter_rows")


def padded_factors(
    x: te.Tensor,
    workload: ConvWorkload,
    instruction: DotInstruction,
    layout: Layout,
    size: tuple[int, int],
    channels: int,
    rows_of: ConvWorkload | None = None,
) -> te.Tensor:
    """Return the stage "pad": x as factors in `layout`, padded with zeros to `size` rows and columns.

    Each group has `channels` channels: those of x, then zeros. With `rows_of` channels are the taps of a window's row,
    and x is the operand of `rows_of`: see `with_rows_as_channels`.
    """
    top, left, _, _ = workload.padding
    (height, width), group_channels = size, workload.w_shape[1]

    def in_row(c: tirx.PrimExpr, v: tirx.PrimExpr) -> tuple[tirx.PrimExpr, tirx.PrimExpr]:
        """Return the channel and the column of x that tap-channel c of output column v reads."""
        assert rows_of is not None
        taps = rows_of.kernel[1]
        return c // taps, v * rows_of.stride[1] + c % taps * rows_of.dilation[1] - rows_of.padding[1]

    def value(*index: tirx.Var) -> tirx.PrimExpr:
        n, c, h, v = layout.logical(*index)
        tests = [] if channels == group_channels else [c % channels < group_channels]
        tests += [h >= top] if top else []
        tests += [h - top < workload.height] if height > top + workload.height else []
        tests += [v >= left] if left else []
        tests += [v - left < workload.width] if width > left + workload.width else []
        c = c if channels == group_channels else c // channels * group_channels + c % channels
        if rows_of is None:
            element = x[workload.x_layout.memory_index(n, c, h - top, v - left)]
        else:
            channel, column = in_row(c, v)
            tests += [column >= 0, column < rows_of.width]
            element = x[rows_of.x_layout.memory_index(n, channel, h - top, column)]
        element = as_factor(element, workload.dtype, instruction.first, workload.zero_point)
        zero = tirx.const(zero_of(workload, instruction.first), instruction.first)
        return tirx.if_then_else(tirx.all(*tests), element, zero) if tests else element

    shape = layout.shape((workload.batch, workload.groups * channels, height, width))
    return te.compute(shape, value, name="pad")
