"""Rows of many lengths: the time of a call with a kernel for each length, and with those for any, on this CPU.

    python benchmarks/lengths.py --channels 256

prints a row for each length: µs of a call, the minimum of interleaved rounds, for a kernel of this length and for the
kernels of `ASSUMED_LENGTHS`.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from script import options_of, print_fastest

from tvmconv import ConvWorkload, Operator
from tvmconv.dispatch import select
from tvmconv.problem import ASSUMED_LENGTHS, Problem
from tvmconv.runtime.operator import compile_problem
from tvmconv.targets import resolve_target

LENGTHS = (1, 2, 4, 8, 15, 16, 24, 32, 64, 100, 128, 200, 256, 300, 512, 1000, 2048, 2049, 4096)


def kernel(channels: int, taps: int, length: int, *open_sizes: str) -> Operator:
    """Return the operator of a causal convolution of rows, chosen for a length."""
    workload = ConvWorkload.depthwise(
        (1, channels, 1, length), (channels, 1, 1, taps), padding=(0, taps - 1, 0, 0), shift=True, activation="silu"
    )
    problem, target = Problem(workload, open_sizes=("batch", *open_sizes)), resolve_target("llvm")
    return compile_problem(problem, select(problem, target), target)


def main() -> None:
    given = options_of(__doc__, batch=2, channels=256, taps=4, rounds=10).parse_args()
    random = np.random.default_rng(0)
    w, shift = (random.random(shape, "float32") for shape in ((given.channels, 1, 1, given.taps), given.channels))
    of_any = {f"any ({length})": kernel(given.channels, given.taps, length, "width") for length in ASSUMED_LENGTHS}
    for length in LENGTHS:
        x = random.random((given.batch, given.channels, 1, length), "float32")
        operators = {"one length": kernel(given.channels, given.taps, length), **of_any}
        ways = {name: partial(operator, x, w, shift=shift) for name, operator in operators.items()}
        print_fastest({"length": length}, ways, given.rounds)


if __name__ == "__main__":
    main()
