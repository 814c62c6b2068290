"""The definition that the direct and the im2win convolution share: sums in whole tiles, with the weight in blocks."""

from __future__ import annotations

from collections.abc import Callable

from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload

from ..epilogue import epilogue, epilogue_operands
from ..open_sizes import in_tiles
from ..padding import padded_input
from .packing import in_groups, packed_weight

Element = Callable[..., "tirx.PrimExpr"]
"""A function of (n, c, h, v, r, s): the input element that output (n, h, v) reads from channel c under tap (r, s)."""

Elements = Callable[[ConvWorkload, te.Tensor, int], Element]
"""A function that makes an `Element` from the workload, the padded input and the rows of output."""


def summed_in_tiles(
    workload: ConvWorkload,
    tile: tuple[int, int, int],
    name: str,
    taps: str,
    elements: Elements,
) -> list[te.Tensor]:
    """Return the TE definition with the sums in the stage `name`, operands first and the output last.

    `taps` is "rs" or "sr", the order of the reduction axes after the channels; `elements` gets the number of output
    rows, rounded up to whole tiles. An input in NHWC is not extended to whole tiles: outputs past the end read what the
    last output reads, without a test.
    """
    x = te.placeholder(*workload.operands["x"], name="x")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    sum_type = workload.storage.sums
    operands = epilogue_operands(workload)
    block, *rows_columns = tile
    height, width = (in_tiles(size, step) for size, step in zip(workload.output_size, rows_columns, strict=True))
    channels_last = workload.layout == "NHWC"
    padded, _ = padded_input(x, workload, workload.output_size if channels_last else (height, width))
    element = elements(workload, padded, height)
    packed = packed_weight(w, workload, block)
    channels = int(packed.shape[0]) * block
    c = te.reduce_axis((0, workload.in_channels // workload.groups), name="c")
    r = te.reduce_axis((0, workload.kernel[0]), name="r")
    s = te.reduce_axis((0, workload.kernel[1]), name="s")

    def within(index: tirx.PrimExpr, size: int, rounded: int) -> tirx.PrimExpr:
        return te.min(index, size - 1) if channels_last and size != rounded else index

    def accumulate(n: tirx.Var, k: tirx.Var, h: tirx.Var, v: tirx.Var) -> tirx.PrimExpr:
        channel = c if workload.groups == 1 else k // (channels // workload.groups) * w.shape[1] + c
        factor = packed[k // block, c, r, s, k % block].astype(sum_type)
        axes = [c, *({"r": r, "s": s}[tap] for tap in taps)]
        row, column = within(h, workload.output_size[0], height), within(v, workload.output_size[1], width)
        return te.sum(element(n, channel, row, column, r, s).astype(sum_type) * factor, axis=axes)

    accumulated = te.compute((workload.batch, channels, height, width), accumulate, name=name)
    return [x, w, *operands.values(), epilogue(in_groups(accumulated, workload), workload, operands)]
