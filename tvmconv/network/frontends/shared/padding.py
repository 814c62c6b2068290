"""Padding and cropping by numbers and by open sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tvm import relax, te, tirx, topi

from ...graph.constants import constant_value, sizes_of
from ...sizes.facts import Size, as_expr, python_text
from ..builder import ImportBuilder


@dataclass(frozen=True)
class Padding:
    """The padding of one axis, in elements; a negative one crops."""

    before: Size
    after: Size


def padded(
    builder: ImportBuilder, x: relax.Expr, paddings: Sequence[Padding], mode: str, value: relax.Expr
) -> relax.Expr:
    """Return a tensor that is padded and cropped along its axes; `value`, with one element, is for the mode "constant".

    Requires of open sizes what the mode needs. Zeros around floating point stay an operator, which kernels take in.

    Before: `x` (n, 8, h), cropped by one row in front and padded by w behind. After: (n, 8, h + w - 1).
    """
    sizes = sizes_of(x.ty) or ()
    for axis, (size, padding) in enumerate(zip(sizes, paddings, strict=True)):
        _require(builder, axis, size, padding, mode)
    if all(each == Padding(0, 0) for each in paddings):
        return x
    widths = [width for each in paddings for width in (each.before, each.after)]
    number = constant_value(value)
    if mode == "constant" and number is not None and "float" in str(x.ty.dtype):
        known = [width for width in widths if isinstance(width, int) and width >= 0]
        if len(known) == len(widths):
            return relax.op.nn.pad(x, known, "constant", float(number.item()))
    totals = [
        builder.facts.simplified(size + each.before + each.after) for size, each in zip(sizes, paddings, strict=True)
    ]
    return shifted(builder, x, [each.before for each in paddings], totals, mode, value)


def _require(builder: ImportBuilder, axis: int, size: Size, padding: Padding, mode: str) -> None:
    if padding == Padding(0, 0):
        return
    rest = as_expr(size) - _cropped(padding.before) - _cropped(padding.after)
    words = (
        f"by {python_text(padding.before)} and {python_text(padding.after)} along axis {axis} of {python_text(size)}"
    )
    if mode == "constant":
        total = as_expr(size) + as_expr(padding.before) + as_expr(padding.after)
        builder.require(total >= 0, f"needs elements to crop; it pads {words}")
        return
    builder.require(rest >= 1, f"needs elements in the mode {mode}; it pads {words}")
    most = tirx.max(as_expr(padding.before), as_expr(padding.after))
    if mode == "reflect":
        builder.require(
            tirx.Or(most <= 0, most < rest), f"needs pads below the size in the mode reflect; it pads {words}"
        )


def _cropped(width: Size) -> tirx.Expr:
    return as_expr(max(-width, 0)) if isinstance(width, int) else tirx.max(0 - width, as_expr(0))


def shifted(
    builder: ImportBuilder,
    x: relax.Expr,
    before: Sequence[Size],
    totals: Sequence[Size],
    mode: str = "constant",
    value: relax.Expr | None = None,
) -> relax.Expr:
    """Return x moved by `before` elements along each axis, in the shape `totals`, with padding around it.

    Nothing outside of x is read, whatever the numbers are.
    """
    value = relax.const(0, x.ty.dtype) if value is None else value

    def compute(x: te.Tensor, value: te.Tensor, before: Sequence[tirx.Expr], totals: Sequence[tirx.Expr]) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            sources, inside = [], []
            for i, first, total, size, is_same in zip(at, before, totals, x.shape, same, strict=True):
                if is_same:
                    sources.append(i)
                    continue
                start = tirx.max(0 - first, as_expr(0))  # of the part of x that is not cropped, and its end
                end = tirx.min(size, total - first)
                position = i.astype("int64") - first
                if mode == "constant":
                    inside += [position >= 0, position < size]
                elif mode == "edge":
                    position = tirx.max(tirx.min(position, end - 1), start)
                elif mode == "wrap":
                    position = start + tirx.floormod(position - start, end - start)
                else:
                    position = start + tirx.abs(position - start)
                    position = end - 1 - tirx.abs(end - 1 - position)
                sources.append(position)
            found = x(*sources)
            scalar = value(*[0] * len(value.shape))
            return tirx.if_then_else(tirx.all(*inside), found, scalar.astype(x.dtype)) if inside else found

        return te.compute(list(totals), element, name="padded", tag=topi.tag.INJECTIVE)

    sizes = sizes_of(x.ty) or ()
    same = [
        isinstance(first, int) and first == 0 and builder.facts.are_equal(size, total)
        for first, size, total in zip(before, sizes, totals, strict=True)
    ]
    arguments = [[as_expr(each) for each in numbers] for numbers in (before, totals)]
    return builder.emit_te(compute, x, value, *arguments, primfunc_name_hint="padded")
