"""Depthwise convolutions in NHWC, and configurations of the CUDA template for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvmconv import ConvWorkload
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_nhwc import Config, template
from tvmconv.testing import DEPTHWISE


def nhwc(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Problem:
    """Return a depthwise convolution in NHWC, for shapes as of one in NCHW."""
    return Problem(ConvWorkload.depthwise(x, w, **options).in_nhwc())


def config(**knobs: Any) -> Config:
    return replace(template.LEAST, **knobs)


TOO_LARGE = ("dilated-past-shared-memory",)
"""Cases with a window that is not unrolled."""

WORKLOADS = {
    case.id: case.workload.in_nhwc() for case in DEPTHWISE if case.workload.multiplier == 1 and case.id not in TOO_LARGE
}
"""The depthwise convolutions with one output for each channel, in NHWC."""

EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu6"}

CASES = {
    "half": (
        nhwc((2, 16, 9, 10), (16, 1, 3, 3), dtype="float16", shift=True, activation="relu"),
        config(vector=8, threads_c=2, threads_y=2, threads_x=3, thread_y=2, thread_x=2),
    ),
    "bfloat16": (
        nhwc((1, 24, 9, 7), (24, 1, 5, 5), dtype="bfloat16", **EPILOGUE),
        config(vector=4, threads_c=6, threads_y=3, threads_x=4, thread_y=2, thread_x=2, ahead=True),
    ),
    "ahead": (
        nhwc((2, 12, 8, 9), (12, 1, 3, 1), shift=True),
        config(vector=4, threads_c=3, threads_y=2, threads_x=4, thread_y=4, thread_x=3, ahead=True),
    ),
    "residual": (
        nhwc((3, 8, 7, 7), (8, 1, 3, 3), **EPILOGUE),
        config(vector=4, threads_c=2, threads_y=4, threads_x=2, thread_y=2, thread_x=4),
    ),
    "odd-channels": (
        nhwc((2, 35, 11, 6), (35, 1, 3, 3), dtype="float16", scale=True),
        config(vector=1, threads_c=35, threads_y=1, threads_x=2, thread_y=3, thread_x=3),
    ),
    "stride-2": (
        nhwc((1, 16, 15, 17), (16, 1, 5, 5), stride=2, dtype="float16"),
        config(vector=2, threads_c=8, threads_y=2, threads_x=4, thread_y=2, thread_x=3, ahead=True),
    ),
    "stride-over-kernel": (
        nhwc((1, 6, 17, 13), (6, 1, 1, 1), stride=(3, 2)),
        config(vector=2, threads_c=3, threads_y=2, threads_x=3, thread_y=3, thread_x=3),
    ),
    "dilation": (
        nhwc((1, 8, 13, 14), (8, 1, 3, 3), dilation=(2, 3), stride=(1, 2)),
        config(vector=4, threads_c=2, threads_y=2, threads_x=2, thread_y=4, thread_x=2),
    ),
    "dilation-and-stride": (
        nhwc((1, 8, 17, 14), (8, 1, 3, 3), dilation=3, stride=2, dtype="bfloat16"),
        config(vector=8, threads_c=1, threads_y=2, threads_x=7, thread_y=3, thread_x=1),
    ),
    "7x7": (
        nhwc((1, 16, 14, 14), (16, 1, 7, 7), dtype="float16"),
        config(vector=2, threads_c=8, threads_y=4, threads_x=2, thread_y=2, thread_x=7),
    ),
    "no-padding": (
        nhwc((1, 8, 10, 10), (8, 1, 3, 3), padding=0, activation="relu"),
        config(vector=4, threads_c=2, threads_y=2, threads_x=4, thread_y=4, thread_x=2),
    ),
    "all-padding": (
        nhwc((1, 4, 2, 2), (4, 1, 3, 3), padding=(4, 3, 2, 5)),
        config(vector=4, threads_c=1, threads_y=2, threads_x=2, thread_y=3, thread_x=4),
    ),
}
"""Configurations with every knob, each with a problem."""
