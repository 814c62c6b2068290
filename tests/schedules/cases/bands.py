"""Depthwise convolutions on tensor cores, each with a configuration that its twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

import msgspec

from tvmconv import ConvWorkload
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_bands import Config


def planes(shape: tuple[int, int, int, int], kernel: int | tuple[int, int], **options: Any) -> Problem:
    """Return a depthwise convolution of x (N, C, H, W), padded such that the output is as large, unless told."""
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    dtype = options.pop("dtype", "float16")
    return Problem(ConvWorkload.depthwise(shape, (shape[1], 1, rows, columns), dtype=dtype, **options))


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu"}

CASES = {
    "31x31": (planes((2, 2, 24, 24), 31), Config(3, 32, 2, 1)),
    "29x29-bfloat16": (planes((1, 2, 14, 20), 29, dtype="bfloat16"), Config(2, 32, 1, 2)),
    "27x27": (planes((4, 2, 14, 14), 27), Config(2, 16, 4, 1)),
    "13x13-odd": (planes((2, 6, 7, 7), 13, **EPILOGUE), Config(1, 16, 2, 3)),
    "7x7-tiles": (planes((2, 3, 19, 40), 7, dtype="bfloat16", **EPILOGUE), Config(1, 16, 1, 3)),
    "7x7-wide": (planes((1, 4, 9, 36), 7), Config(2, 48, 1, 2)),
    "5x5-valid": (planes((2, 4, 18, 22), 5, padding="VALID", shift=True, activation="relu"), Config(2, 32, 2, 4)),
    "3x9": (planes((3, 2, 8, 16), (3, 9), padding=(0, 5, 2, 1)), Config(1, 16, 3, 1)),
    "1x128": (planes((2, 2, 3, 130), (1, 128), dtype="bfloat16"), Config(1, 48, 1, 1)),
    "31x31-float32": (planes((2, 2, 24, 24), 31, dtype="float32"), Config(3, 32, 2, 1)),
    "27x27-tf32": (
        msgspec.structs.replace(planes((4, 2, 14, 14), 27, dtype="float32"), precision="tf32"),
        Config(2, 16, 4, 1),
    ),
    "11x11-float32-epilogue": (planes((2, 3, 15, 37), 11, dtype="float32", **EPILOGUE), Config(1, 16, 1, 3)),
    "sequences-128": (planes((5, 3, 1, 200), (1, 128), padding=(0, 127, 0, 0), shift=True), Config(1, 64, 1, 3)),
    "sequences-4-float32": (planes((9, 4, 1, 50), (1, 4), dtype="float32"), Config(2, 32, 1, 2)),
    "1x1": (planes((1, 8, 3, 5), 1), Config(1, 16, 1, 8)),
}
