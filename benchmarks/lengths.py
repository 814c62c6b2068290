"""Rows of many lengths: the time of a call with a kernel for each length, and with those for any, on this CPU.

    python benchmarks/lengths.py --channels 256

prints a row for each length: µs of a call, the minimum of interleaved rounds, for a kernel of this length and for the
kernels of `ASSUMED_LENGTHS`.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--channels", type=int, default=256)
    parser.add_argument("--taps", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    w, shift = (random.random(shape, "float32") for shape in ((given.channels, 1, 1, given.taps), given.channels))
    of_any = {str(length): kernel(given.channels, given.taps, length, "width") for length in ASSUMED_LENGTHS}
    print("length  one length", *(f"any ({name})" for name in of_any), sep="  ")
    for length in LENGTHS:
        x = random.random((given.batch, given.channels, 1, length), "float32")
        each = {"one": kernel(given.channels, given.taps, length), **of_any}
        best = dict.fromkeys(each, float("inf"))
        count = max(10, 1_000_000 // x.size)
        for _ in range(given.rounds):
            for name, operator in each.items():
                begun = time.perf_counter()
                for _ in range(count):
                    operator(x, w, shift=shift)
                best[name] = min(best[name], (time.perf_counter() - begun) / count)
        print(f"{length:6d}", *(f"{1e6 * seconds:10.1f}" for seconds in best.values()), sep="  ")


if __name__ == "__main__":
    main()
