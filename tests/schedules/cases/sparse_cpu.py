"""Convolutions with weights that are compiled in, each with a configuration, for CPUs."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from tests.schedules.cases import problems
from tvmconv.problem.dtypes import NARROW
from tvmconv.schedules.cpu.sparse import Config

conv2d, depthwise = partial(problems.conv2d, sparsity=0.7), partial(problems.depthwise, sparsity=0.7)


def config(**knobs: Any) -> Config:
    return replace(Config(block_m=4, vectors=2, rows=3, shares=1, parallel=True), **knobs)


CASES = {
    "3x3": (conv2d((1, 6, 9, 10), (12, 6, 3, 3), padding=1), config()),
    "shares": (conv2d((1, 6, 9, 10), (10, 6, 3, 3), padding=1), config(shares=3)),
    "ragged-bands": (conv2d((2, 5, 11, 19), (7, 5, 3, 3), padding=1), config(rows=4)),
    "serial": (conv2d((2, 5, 11, 19), (7, 5, 3, 3), padding=1), config(parallel=False)),
    "one-band": (conv2d((1, 3, 7, 33), (4, 3, 3, 3)), config(rows=5, vectors=3, block_m=4)),
    "1x1": (conv2d((2, 12, 5, 7), (10, 12, 1, 1)), config()),
    "one-pixel": (conv2d((1, 12, 3, 3), (10, 12, 3, 3)), config(rows=1, vectors=1)),
    "strided-1x1": (conv2d((1, 12, 9, 9), (10, 12, 1, 1), stride=2), config()),
    "epilogue": (
        conv2d((1, 4, 8, 10), (7, 4, 3, 3), scale=True, shift=True, residual=True, activation=("clip", -0.5, 1.5)),
        config(block_m=3),
    ),
    "stride-dilation-padding": (
        conv2d((1, 4, 13, 14), (6, 4, 3, 2), stride=2, dilation=(2, 1), padding=(1, 0, 2, 3)),
        config(),
    ),
    "unequal-strides": (conv2d((1, 4, 13, 14), (6, 4, 3, 5), stride=(3, 2), padding=2), config()),
    "groups": (conv2d((1, 8, 8, 10), (12, 4, 3, 3), groups=2, padding=1), config(block_m=5)),
    "depthwise": (depthwise((1, 6, 8, 10), (6, 2, 3, 3), shift=True), config()),
    "one-channel": (conv2d((1, 1, 8, 10), (4, 1, 3, 3)), config()),
    **{dtype: (conv2d((1, 6, 8, 10), (12, 6, 3, 3), dtype=dtype, activation="relu"), config()) for dtype in NARROW},
}
