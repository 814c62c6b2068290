"""Operators of the sparse code-generation paper over shares of zeros, beside dense kernels.

    python benchmarks/sparsity.py --target cuda --sparsities 0,0.3,0.5,0.7,0.8,0.9 -o sparsity-h200.json
    python benchmarks/sparsity.py resnet-conv2 --batch 1 --peers pytorch,onnxruntime

Zeros are at random positions. Results are checked first; times are medians of rounds in which all contenders take
turns, with warm caches. Behind the rows is the share of zeros from which tvmconv is faster than each peer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import msgspec
from script import Row, main

from tvmconv.bench import choose
from tvmconv.bench.suite import How, choose_peers, measure_row
from tvmconv.bench.timing import use_threads_of_tvm
from tvmconv.checking.suites import load_suite
from tvmconv.targets import resolve_target

SUITE = "sparse-paper"
SPARSITIES = [f"{step / 10}" for step in range(10)]
"""The shares of zeros in figure 11 of the sparse code-generation paper."""


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the row of each operator and share of zeros; print the crossovers behind those of an operator."""
    target = resolve_target(given.target)
    use_threads_of_tvm(target)
    operators = load_suite(SUITE, target.kind.name, given.batch)
    for name, workload in choose(operators, given.operators, "operators").items():
        found = dict[float, Row]()
        for share in map(float, given.sparsities):
            how = How(given.rounds, sparsity=share)
            row = measure_row(SUITE, name, workload, target, choose_peers(given.peers, how), how)
            found[share] = msgspec.to_builtins(row)
            yield found[share]
        for peer in given.peers:
            share = crossover([*found.values()], peer)
            print(f"{name}: faster than {peer} {'nowhere' if share is None else f'from {share:.0%} zeros on'}")


def crossover(rows: Sequence[Row], peer: str) -> float | None:
    """Return the share of zeros from which tvmconv is faster than a peer; None where it is slower at the largest."""
    found = None
    for row in sorted(rows, key=lambda row: -row["sparsity"]):
        if not {"tvmconv", peer} <= row["times"].keys():
            return found
        if row["times"][peer]["median"] <= row["times"]["tvmconv"]["median"]:
            return found
        found = row["sparsity"]
    return found


if __name__ == "__main__":
    options = {"operators": (), "target": "llvm", "batch": int, "sparsities": SPARSITIES}
    main(__doc__, rows, **options, peers=["pytorch", "pytorch-tf32"], rounds=5)
