"""Dense convolutions on CUDA cores, each with a configuration that defaults and random ones seldom reach."""

from __future__ import annotations

from typing import Any

from tests.schedules.cases.problems import conv2d
from tvmconv.problem.dtypes import NARROW
from tvmconv.schedules.cuda.simt import im2win
from tvmconv.schedules.cuda.simt.direct import Config


def config(**knobs: Any) -> Config:
    tile = {
        "threads_m": 4,
        "threads_n": 8,
        "lanes_m": 4,
        "vthreads_m": 2,
        "vthreads_n": 1,
        "thread_m": 4,
        "thread_n": 4,
    }
    return Config(**{**tile, "block_c": 8, "block_r": 1, "block_s": 1, **knobs})


LAYER = conv2d((2, 16, 9, 11), (24, 16, 3, 3), padding=1, shift=True, residual=True, activation="relu")
GROUPED = conv2d((2, 16, 12, 12), (64, 8, 3, 3), stride=2, dilation=2, groups=2, scale=True)
PLAIN = conv2d((4, 16, 10, 10), (40, 16, 3, 3), padding=0)
FEW = conv2d((1, 3, 27, 27), (41, 3, 7, 7), stride=2, padding=0, activation="relu")
UNEVEN = conv2d((1, 38, 9, 9), (34, 19, 3, 3), groups=2, padding=(0, 1, 2, 0), shift=True)

CASES = {
    "single-buffer": (LAYER, config()),
    "through-registers": (LAYER, config(num_stages=2, packed=True, load=4)),
    "cp-async": (LAYER, config(num_stages=3, asynchronous=True, packed=True, load=4)),
    "window-chunks": (LAYER, config(block_c=1, block_r=3, block_s=3, num_stages=2, asynchronous=True)),
    "split-k": (LAYER, config(num_stages=2, packed=True, split_k=2)),
    "micro-tile-8x16": (
        PLAIN,
        config(block_c=4, threads_n=16, vthreads_n=4, num_stages=2, asynchronous=True, packed=True),
    ),
    "groups": (GROUPED, config(num_stages=2, asynchronous=True, packed=True, load=4, store=4)),
    "groups-split-k": (GROUPED, config(block_c=2, block_s=3, num_stages=4, asynchronous=True, split_k=2, packed=True)),
    "row-chunks": (FEW, config(block_c=3, block_s=7, num_stages=2, asynchronous=True, packed=True, load=4)),
    "unpacked-split-k": (FEW, config(block_c=1, block_s=7, num_stages=2, asynchronous=True, split_k=3)),
    "one-pixel": (FEW, config(block_c=3, block_s=7, thread_n=1, thread_m=1, packed=True)),
    "channels-past-the-last": (UNEVEN, config(block_c=8, num_stages=2)),
    "split-k-past-the-last": (UNEVEN, config(block_c=2, num_stages=2, packed=True, load=4, split_k=4)),
    "chunks-past-the-last": (
        UNEVEN,
        config(block_c=5, block_s=3, num_stages=3, asynchronous=True, packed=True, split_k=2),
    ),
    "room-for-more": (PLAIN, config(threads_m=8, threads_n=16, num_stages=2, packed=True, load=4, min_blocks_per_sm=4)),
    **{
        dtype: (
            conv2d((2, 16, 12, 12), (64, 16, 3, 3), dtype=dtype),
            config(num_stages=2, packed=True, load=8, store=4),
        )
        for dtype in NARROW
    },
}

IM2WIN = {
    name: (CASES[name][0], im2win.Config(**vars(CASES[name][1])))
    for name in ("through-registers", "split-k", "groups-split-k", "split-k-past-the-last", *NARROW)
}
"""The same tiles over windows."""
