"""Depthwise convolutions in NCHW on CUDA, each with knobs that random configurations seldom combine."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.schedules.cases.problems import depthwise
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
