"""Depthwise convolutions in NCHW on CUDA, each with knobs that random configurations seldom combine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.schedules.cases.problems import depthwise
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW
from tvmconv.schedules.cuda.depthwise.tiles import LEAST, Config


def config(**knobs: Any) -> Config:
    return replace(LEAST, unroll=2, **knobs)


CASES = {
    "flat": (
        depthwise((2, 16, 7, 7), (16, 1, 3, 3)),
        config(planes=8, threads_y=7, thread_x=7, flat=True),
    ),
    **{
        f"flat-multiplier-2-{dtype}": (
            depthwise((1, 8, 9, 6), (8, 2, 3, 3), scale=True, activation="relu", dtype=dtype),
            config(planes=4, threads_y=3, thread_y=3, thread_x=6, flat=True, shared_filter=True),
        )
        for dtype in NARROW
    },
    "flat-vectors": (
        depthwise((1, 8, 9, 12), (8, 1, 3, 3), shift=True),
        config(planes=4, threads_y=3, threads_x=6, thread_y=3, thread_x=2, store=4, flat=True, load=2),
    ),
    "load-2": (
        depthwise((1, 8, 14, 14), (8, 1, 5, 5)),
        config(planes=4, threads_y=2, threads_x=7, thread_y=7, thread_x=2, store=2, load=2),
    ),
    "load-4-stride-2": (
        depthwise((1, 4, 16, 32), (4, 1, 3, 3), stride=2),
        config(planes=2, threads_y=4, threads_x=4, thread_y=2, thread_x=4, load=4),
    ),
    **{
        f"load-8-{dtype}": (
            depthwise((1, 4, 8, 32), (4, 1, 3, 3), dtype=dtype),
            config(planes=2, threads_y=4, threads_x=4, thread_y=2, thread_x=8, store=4, load=8),
        )
        for dtype in NARROW
    },
    "load-4-shared": (
        depthwise((1, 4, 16, 16), (4, 1, 3, 3)),
        config(
            planes=2, threads_y=4, threads_x=8, thread_y=4, thread_x=2, shared_input=True, shared_filter=True, load=4
        ),
    ),
    "siblings-3": (
        depthwise((1, 4, 10, 12), (4, 3, 3, 3)),
        config(planes=6, threads_y=5, threads_x=6, thread_y=2, thread_x=2, siblings=3, load=2),
    ),
}


def row(channels: int, width: int, taps: int, dtype: str = "float32", after: int = 0, batch: int = 2) -> Problem:
    """Return a convolution of sequences that is causal, but for the padding after it."""
    return depthwise(
        (batch, channels, 1, width),
        (channels, 1, 1, taps),
        padding=(0, taps - 1, 0, after),
        dtype=dtype,
        shift=True,
        activation="silu",
    )


ROWS = {
    "vectors": (row(4, 2048, 4), None),
    "half": (row(3, 2048, 4, "float16"), None),
    "bfloat16": (row(3, 512, 2, "bfloat16"), None),
    "short": (row(12, 40, 3), None),
    "waste": (row(2, 1000, 7, "float16"), None),
    "odd-output": (row(2, 300, 4, after=3), None),
    "odd-input": (row(3, 211, 5, "float16"), None),
    "64-taps": (row(2, 512, 64), None),
    "128-taps": (row(2, 512, 128, "float16"), None),
    "one-element": (row(8, 1, 4), None),
    "stride": (depthwise((2, 4, 1, 512), (4, 1, 1, 4), stride=(1, 2), padding=(0, 3, 0, 0)), None),
    "multiplier": (depthwise((2, 4, 1, 256), (4, 2, 1, 4), padding=(0, 3, 0, 0)), None),
}
"""Sequences, in default configurations: vectors in strided parts of a thread."""
