"""Linear layers of few rows, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

from tvmconv import ConvWorkload
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.matvec import Config


def rows(count: int, channels: int, outputs: int, dtype: str = "float16", **options: Any) -> Problem:
    """Return a linear layer of so many rows."""
    precision = options.pop("precision", "float32")
    workload = ConvWorkload.conv2d((count, channels, 1, 1), (outputs, channels, 1, 1), dtype=dtype, **options)
    return Problem(workload, precision=precision)


def last(problem: Problem) -> Problem:
    """Return a problem with its channels last, which is the same in memory."""
    return Problem(problem.workload.in_nhwc())


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu"}

CASES = {
    "whole": (rows(1, 512, 24), Config(1, 4, 2)),
    "chunks": (rows(1, 1536, 8, **EPILOGUE), Config(1, 2, 3)),
    "terms-behind": (rows(1, 1000, 9, shift=True), Config(1, 4, 2)),
    "outputs-behind": (rows(1, 256, 10, activation="gelu"), Config(1, 4, 1)),
    "several-warps": (rows(1, 1280, 6, shift=True), Config(2, 2, 3)),
    "four-warps": (rows(2, 1100, 7, "float32", **EPILOGUE), Config(4, 1, 2)),
    "float32": (rows(1, 640, 20, "float32", precision="strict", shift=True), Config(1, 2, 4)),
    "bfloat16": (rows(1, 520, 12, "bfloat16", shift=True, activation="silu"), Config(1, 8, 2)),
    "to-float32": (rows(1, 264, 5, out_dtype="float32"), Config(1, 1, 2)),
    "two-rows": (rows(2, 384, 9, **EPILOGUE), Config(1, 4, 2)),
    "four-rows": (rows(4, 312, 13, "bfloat16", **EPILOGUE), Config(2, 4, 1)),
    "channels-last": (last(rows(3, 96, 8, **EPILOGUE)), Config(1, 4, 1)),
    "odd-terms": (rows(1, 77, 5, shift=True), Config(1, 2, 4)),
    "pairs": (rows(3, 70, 6, "float32"), Config(1, 4, 2)),
    "one-output": (rows(4, 48, 1), Config(1, 1, 1)),
    "int8": (rows(1, 592, 10, "int8"), Config(1, 4, 2)),
    "uint8": (
        rows(2, 528, 9, "uint8", x_zero_point=120, out_dtype="int8", out_zero_point=-3, scale=True, shift=True),
        Config(1, 4, 2),
    ),
}
