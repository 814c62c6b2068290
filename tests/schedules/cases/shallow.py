"""Convolutions of few input channels, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv import ConvWorkload
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.shallow import Config


def image(size: tuple[int, int, int, int], outputs: int, kernel: int | tuple[int, int] = 3, **options: Any) -> Problem:
    """Return a convolution of images (N, C, H, W) to so many channels, from NCHW to NHWC unless layouts are given."""
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    layout, w_layout = options.pop("layout", "NCHW"), options.pop("w_layout", "KCRS")
    out_layout = options.pop("out_layout", "NHWC")
    dtype = options.pop("dtype", "float16")
    workload = ConvWorkload.conv2d(
        size, (outputs, size[1] // options.get("groups", 1), rows, columns), dtype=dtype, **options
    )
    changed = {"layout": layout, "out_layout": out_layout, "w_layout": w_layout}
    return Problem(msgspec.structs.replace(workload.in_nhwc(), **changed))


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu"}

CASES = {
    "7x7-stride-2": (image((1, 3, 20, 37), 64, 7, stride=2, padding=3), Config(4, 16, 64, 2, 1)),
    "3x3-stride-2": (image((2, 3, 15, 17), 24, stride=2, dtype="bfloat16"), Config(4, 8, 24, 1, 1)),
    "3x3": (image((2, 3, 9, 11), 32, **EPILOGUE), Config(4, 16, 32, 2, 2)),
    "11x11-stride-4": (image((1, 3, 31, 40), 96, 11, stride=4, padding=2), Config(2, 8, 96, 1, 2)),
    "4x4-stride-4": (image((2, 3, 16, 24), 96, 4, stride=4, padding=0, shift=True), Config(4, 8, 48, 1, 1)),
    "7x7-epilogue": (image((2, 3, 19, 22), 64, 7, stride=2, **EPILOGUE), Config(4, 16, 64, 2, 1)),
    "planes": (image((2, 3, 12, 32), 24, out_layout="NCHW", padding=1, **EPILOGUE), Config(4, 32, 24, 2, 1)),
    "planes-odd": (image((1, 3, 13, 23), 32, 5, stride=2, out_layout="NCHW"), Config(4, 16, 16, 1, 1)),
    "NHWC": (image((2, 3, 13, 14), 48, 5, layout="NHWC", w_layout="KRSC", **EPILOGUE), Config(4, 8, 48, 2, 3)),
    "NHWC-stride-2": (image((1, 3, 21, 19), 16, stride=2, layout="NHWC", dtype="bfloat16"), Config(2, 16, 16, 1, 1)),
    "two-channels": (image((1, 2, 8, 9), 40, (3, 2), out_dtype="float32"), Config(2, 8, 40, 1, 1)),
    "one-channel": (image((1, 1, 20, 37), 64, 7, stride=2, padding=3), Config(4, 16, 64, 2, 1)),
    "four-channels": (image((1, 4, 10, 9), 64, padding=(0, 1, 2, 3)), Config(4, 16, 32, 2, 1)),
    "stride-1x3": (image((1, 3, 9, 25), 24, (3, 5), stride=(1, 3)), Config(2, 8, 24, 1, 1)),
    "1x2": (image((2, 4, 5, 6), 8, (1, 2)), Config(4, 8, 16, 1, 1)),
    "idle-warp": (image((1, 4, 5, 19), 8, (1, 4), stride=2, out_layout="NCHW"), Config(2, 16, 16, 1, 2)),
    "idle-lanes": (image((1, 4, 8, 8), 8, 5, stride=(1, 3), padding=0, out_layout="NCHW"), Config(4, 16, 8, 1, 1)),
    "one-column": (image((2, 3, 6, 2), 24, (1, 4), stride=(1, 5), padding=1), Config(2, 8, 8, 1, 1)),
}
