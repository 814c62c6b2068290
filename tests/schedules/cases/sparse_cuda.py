"""Convolutions with weights that are compiled in, each with a configuration, for GPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from msgspec.structs import replace as replace_struct

from tests.schedules.cases import problems
from tvmconv.problem.dtypes import NARROW
from tvmconv.schedules.cuda.sparse import Config

conv2d, depthwise = partial(problems.conv2d, sparsity=0.7), partial(problems.depthwise, sparsity=0.7)


def config(**knobs: Any) -> Config:
    plain = Config(8, images=1, threads_y=4, threads_x=5, thread_y=1, thread_x=1, block_c=2, num_stages=2)
    return replace(plain, **knobs)


CASES = {
    "3x3": (conv2d((1, 6, 9, 10), (12, 6, 3, 3)), config()),
    "one-stage": (conv2d((1, 6, 9, 10), (12, 6, 3, 3)), config(num_stages=1)),
    "three-stages": (conv2d((1, 6, 9, 10), (12, 6, 3, 3)), config(num_stages=3)),
    "tiles": (conv2d((1, 6, 8, 10), (12, 6, 3, 3)), config(tiles=2)),
    "1x1": (conv2d((2, 12, 5, 5), (10, 12, 1, 1)), config(images=2, block_c=4)),
    "one-thread": (conv2d((1, 2, 1, 1), (5, 2, 3, 3)), config(threads_y=1, threads_x=1, block_c=1)),
    "one-channel": (conv2d((1, 1, 8, 10), (4, 1, 3, 3)), config(block_c=1, num_stages=1)),
    "rows-columns-epilogue": (
        conv2d((1, 4, 8, 10), (7, 4, 3, 3), scale=True, shift=True, residual=True, activation=("clip", -0.5, 1.5)),
        config(thread_y=2, thread_x=2, threads_x=3, block_m=3),
    ),
    "stride-dilation-padding": (
        conv2d((1, 4, 13, 14), (6, 4, 3, 2), stride=2, dilation=(2, 1), padding=(1, 0, 2, 3)),
        config(threads_y=3, threads_x=4),
    ),
    "groups": (conv2d((1, 8, 8, 10), (12, 4, 3, 3), groups=2), config(block_m=5, block_c=4)),
    "depthwise": (depthwise((1, 6, 8, 10), (6, 2, 3, 3), shift=True), config()),
    **{
        dtype: (conv2d((1, 6, 8, 10), (12, 6, 3, 3), dtype=dtype, activation="relu"), config(num_stages=1))
        for dtype in NARROW
    },
}

CASES |= {
    f"{name}-of-any-batch": (replace_struct(CASES[name][0], open_sizes=("batch",)), CASES[name][1])
    for name in ("three-stages", "tiles", "rows-columns-epilogue", "groups", "depthwise")
}
