"""Shapes of layers for CPUs that multiply integers and bfloat16, in any layouts."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv import ConvWorkload


def layer(
    x: tuple[int, ...], w: tuple[int, ...], layouts: tuple[str, str] = ("NCHW", "NCHW"), **options: Any
) -> ConvWorkload:
    """Return a convolution whose weight is in KRSC where x is in NHWC."""
    workload = ConvWorkload.conv2d(x, w, **options)
    w_layout = "KRSC" if layouts[0] == "NHWC" else "KCRS"
    return msgspec.structs.replace(workload, layout=layouts[0], out_layout=layouts[1], w_layout=w_layout)


SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "1x1": ((1, 32, 7, 9), (48, 32, 1, 1), {"residual": True}),
    "1x1-whole-tiles": ((2, 64, 8, 8), (32, 64, 1, 1), {"shift": True}),
    "1x1-stride": ((2, 32, 9, 9), (32, 32, 1, 1), {"stride": 2}),
    "3x3": ((1, 48, 9, 17), (64, 48, 3, 3), {"activation": "relu"}),
    "several-chunks": ((1, 144, 5, 9), (32, 144, 3, 3), {}),
    "valid-dilation": ((1, 16, 13, 12), (16, 16, 3, 3), {"padding": "VALID", "dilation": (2, 1)}),
    "uneven-padding": ((1, 16, 6, 5), (32, 16, 4, 2), {"padding": (3, 0, 1, 2), "stride": (1, 2)}),
    "one-pixel": ((3, 64, 1, 1), (80, 64, 1, 1), {}),
}
