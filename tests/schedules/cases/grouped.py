"""Convolutions in narrow groups, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv import ConvWorkload
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.grouped import Config


def groups(count: int, channels: int, size: tuple[int, int, int], kernel: int = 3, **options: Any) -> Problem:
    """Return a convolution in so many groups of channels, of images (N, H, W), in NHWC."""
    n, height, width = size
    outputs, w_layout = options.pop("outputs", channels), options.pop("w_layout", "KRSC")
    dtype = options.pop("dtype", "float16")
    x, w = (n, count * channels, height, width), (count * outputs, channels, kernel, kernel)
    workload = ConvWorkload.conv2d(x, w, dtype=dtype, groups=count, **options).in_nhwc()
    return Problem(msgspec.structs.replace(workload, w_layout=w_layout))


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu"}

CASES = {
    "4-channels": (groups(32, 4, (2, 9, 11)), Config(8, 16, 2, 2)),
    "4-channels-stride-2": (groups(8, 4, (1, 15, 13), dtype="bfloat16", stride=2), Config(4, 8, 1, 3)),
    "4-channels-epilogue": (groups(4, 4, (2, 5, 7), **EPILOGUE), Config(4, 8, 2, 2)),
    "8-channels": (groups(32, 8, (1, 10, 9)), Config(4, 16, 1, 4)),
    "8-channels-stride-2": (groups(6, 8, (2, 11, 9), stride=2, shift=True, activation="relu"), Config(4, 8, 2, 4)),
    "8-channels-dilation": (groups(4, 8, (1, 12, 13), dilation=(2, 3), dtype="bfloat16"), Config(8, 16, 2, 2)),
    "8-channels-KCRS": (groups(4, 8, (1, 6, 7), w_layout="KCRS"), Config(2, 8, 1, 2)),
    "16-channels": (groups(8, 16, (2, 7, 7), dtype="bfloat16", **EPILOGUE), Config(8, 8, 2, 4)),
    "16-channels-stride-2x1": (groups(3, 16, (1, 9, 10), stride=(2, 1)), Config(4, 16, 1, 3)),
    "24-channels": (groups(5, 24, (1, 7, 9)), Config(4, 16, 2, 3)),
    "32-channels-1x1": (groups(4, 32, (2, 6, 5), 1, dtype="bfloat16"), Config(4, 8, 1, 4)),
    "64-channels-1x1-KCRS": (groups(2, 64, (1, 5, 5), 1, w_layout="KCRS"), Config(4, 8, 2, 2)),
    "8-to-16-channels-5x5": (groups(4, 8, (1, 9, 9), 5, outputs=16), Config(4, 16, 1, 4)),
    "16-to-8-channels": (groups(4, 16, (1, 8, 8), outputs=8, padding=(0, 1, 2, 3)), Config(2, 16, 1, 4)),
    "32-channels-epilogue": (groups(2, 32, (2, 5, 6), **EPILOGUE), Config(4, 8, 2, 2)),
    "40-channels-float32": (groups(2, 40, (1, 6, 6), 1, out_dtype="float32", activation="gelu"), Config(2, 8, 1, 2)),
    "images": (groups(4, 16, (6, 7, 7), **EPILOGUE), Config(8, 8, 1, 2, 3)),
    "images-of-several-warps": (groups(4, 8, (2, 9, 10), stride=2, dtype="bfloat16"), Config(4, 8, 2, 2, 2)),
    "one-pixel": (groups(2, 8, (3, 1, 1)), Config(2, 8, 1, 1)),
}
