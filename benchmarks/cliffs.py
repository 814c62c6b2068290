"""Jumps in time: convolutions that take much longer than ones of nearly the same size, beside PyTorch.

    python benchmarks/cliffs.py -o cliffs.json                       # on a GPU, or --target llvm
    python benchmarks/cliffs.py --walks channels,width --dtypes float16

A walk is a convolution with one parameter that runs through values; each is called on arrays as a user calls it, the
layout of the weight included. There is a step between a case and the one before it where the ratio of their times,
divided by that of their multiply-adds where the slow one has more, is over 2: "step" is the quotient, negative where
the case before is the slow one. "cause" is the template of a contiguous x. Results are first compared with PyTorch's in
float64: "error" is the largest difference, as a share of the largest number.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import torch
from script import CLOSE, ORDERS, TARGETS, Row, begin, errors_of, main, timed
from torch.nn import functional

import tvmconv
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload

SECONDS = 0.02
"""The time of a contender in a round, in seconds."""
STEP = 2
"""The least ratio of the times of neighbours that is a step."""

SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 20, 24, 31, 32, 33, 40, 48, 49, 63, 64, 65, 80, 96, 97, 127, 128, 130)
"""The values of channels, and of rows and columns: powers of two, their multiples, and the numbers beside them."""
BATCHES = (1, 2, 3, 4, 7, 8, 9, 16, 17, 31, 32, 33)


class Case(NamedTuple):
    """A convolution with padding that keeps the size of a plane, as far as its stride does."""

    channels: int = 64
    outputs: int = 64
    batch: int = 1
    height: int = 56
    width: int = 56
    kernel: int = 3
    stride: int = 1
    dilation: int = 1
    groups: int = 1

    @property
    def multiply_adds(self) -> float:
        """The multiply-adds of a call."""
        planes = self.height * self.width / self.stride**2
        return self.batch * planes * self.outputs * self.channels / self.groups * self.kernel**2


WALKS: dict[str, Callable[[], list[Case]]] = {
    "channels": lambda: [Case(channels=size) for size in SIZES],
    "outputs": lambda: [Case(outputs=size) for size in SIZES],
    "both": lambda: [Case(channels=size, outputs=size) for size in SIZES],
    "pointwise": lambda: [Case(channels=size, outputs=size, kernel=1) for size in SIZES],
    "pointwise-pixels": lambda: [Case(64, 256, height=size, width=size, kernel=1) for size in SIZES],
    "large-pixels": lambda: [
        Case(64, 64, height=size, width=size, kernel=1) for size in (200, 207, 208, 209, 224, 225)
    ],
    "depthwise": lambda: [Case(size, size, groups=size) for size in SIZES],
    "groups": lambda: [Case(groups=groups) for groups in (1, 2, 4, 8, 16, 32, 64)],
    "batch": lambda: [Case(batch=batch, height=14, width=14) for batch in BATCHES],
    "linear": lambda: [Case(512, 512, batch=batch, height=1, width=1, kernel=1) for batch in BATCHES],
    "height": lambda: [Case(height=size, width=28) for size in SIZES],
    "width": lambda: [Case(height=28, width=size) for size in SIZES],
    "kernel": lambda: [Case(height=28, width=28, kernel=kernel) for kernel in range(1, 12)],
    "depthwise-kernel": lambda: [Case(height=28, width=28, kernel=kernel, groups=64) for kernel in range(1, 12)],
    "stride": lambda: [Case(stride=stride) for stride in (1, 2, 3, 4)],
    "dilation": lambda: [
        Case(256, 256, height=33, width=33, dilation=dilation) for dilation in (1, 2, 3, 6, 12, 18, 36)
    ],
}
"""The cases of each walk, in order."""


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the row of each case, with the step between it and the case before it in its walk."""
    target, device = begin(given.target)
    for name, dtype, order in product(given.walks, given.dtypes, given.orders):
        before: tuple[float, float] | None = None
        for case in WALKS[name]():
            row = measured(case, dtype, order, target, device, given.rounds)
            now = case.multiply_adds, row["times"]["tvmconv"]["low"]
            changed = {field: value for field, value in case._asdict().items() if value != Case._field_defaults[field]}
            step = None if before is None else step_between(before, now)
            yield {"kind": f"{name}, {dtype}, {order}", "case": changed, **row, "step": step}
            before = now


def step_between(before: tuple[float, float], now: tuple[float, float]) -> float | None:
    """Return the ratio of a step between two cases, each its multiply-adds and seconds; None where there is none.

    It is positive where the second case is the slow one, and negative where the first one is.
    """
    for sign, slow, fast in ((1, now, before), (-1, before, now)):
        ratio = slow[1] / fast[1] / max(1.0, slow[0] / fast[0])
        if ratio > STEP:
            return sign * ratio
    return None


def measured(case: Case, dtype: str, order: str, target: Any, device: str, rounds: int) -> Row:
    """Return the template, the error and the times of a case."""
    random = partial(torch.randn, device=device, dtype=getattr(torch, dtype))
    x = random(case.batch, case.channels, case.height, case.width).to(memory_format=ORDERS[order])
    w = random(case.outputs, case.channels // case.groups, case.kernel, case.kernel).to(memory_format=ORDERS[order])
    options = {
        "stride": case.stride,
        "padding": case.dilation * (case.kernel // 2),
        "dilation": case.dilation,
        "groups": case.groups,
    }
    calls = {
        "tvmconv": partial(tvmconv.conv2d, x, w, **options),
        "pytorch": partial(functional.conv2d, x, w, **options),
    }
    exact = functional.conv2d(x[:1].double(), w.double(), **options)
    errors = errors_of({name: call()[:1] for name, call in calls.items()}, exact, CLOSE[dtype], str(case))
    workload = ConvWorkload.conv2d(tuple(x.shape), tuple(w.shape), dtype=dtype, **options)
    template = select(Problem(workload), target).name if order == "contiguous" else ""
    return {"error": errors["tvmconv"], "cause": template, "times": timed(calls, device, rounds, SECONDS)}


if __name__ == "__main__":
    options = {"target": TARGETS, "walks": list(WALKS), "dtypes": ["float32"], "orders": ["contiguous"], "rounds": 3}
    main(__doc__, rows, **options)
