"""The layers of the im2win thesis without each optimization of the schedule in turn, as in its figure 4-9.

    python benchmarks/ablation.py                                                             # on the CPU
    python benchmarks/ablation.py --target cuda --algorithm direct --rounds 5 -o ablation-h200.json
    python benchmarks/ablation.py conv4 conv9 --batch 8

The configuration that tvmconv chooses for a layer, or that of `--algorithm`, loses its micro-kernel, its vector loads,
its prefetch and its packed weight, or what a CPU has of the like. All configurations of a layer are checked, and take
turns, with warm caches; the text has the share of the speed that is left without each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import msgspec
from script import Row, main

from tvmconv.bench import choose
from tvmconv.bench.peers.ours import Tvmconv
from tvmconv.bench.suite import How, measure_row
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target

SUITE = "im2win-thesis"


class Configured(Tvmconv):
    """tvmconv with a given configuration."""

    def __init__(self, config: Any, algorithm: str) -> None:
        super().__init__()
        self.config, self.algorithm, self.name = config, algorithm, str(config)


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the times of each layer with its whole configuration, and without each of its optimizations."""
    target = resolve_target(given.target)
    layers = load_suite(SUITE, target.kind.name, given.batch)
    for name, workload in choose(layers, given.layers, "layers").items():
        problem = Problem(workload)
        selection = select(problem, target, algorithm=given.algorithm)
        space, whole = selection.template.space(problem, target), selection.config
        ablations = selection.template.ablations(whole).items()
        without = {each: config for each, config in ablations if config != whole and not space.violated(config)}
        algorithm = selection.name.partition("/")[2]
        peers = [Configured(config, algorithm) for config in dict.fromkeys([whole, *without.values()])]
        times = measure_row(SUITE, name, workload, target, peers, How(given.rounds)).times
        found = {
            each: {"config": msgspec.to_builtins(config), "time": msgspec.to_builtins(times[str(config)])}
            for each, config in {"": whole, **without}.items()
        }
        yield {"name": name, "workload": str(problem), "flops": workload.flops, "template": selection.name} | {
            **found.pop(""),
            "without": found,
        }


def text(row: Row) -> str:
    """Return a row in words."""
    shares = {name: row["time"]["median"] / each["time"]["median"] for name, each in row["without"].items()}
    left = ", ".join(f"{share:.0%} without {name}" for name, share in shares.items())
    return f"{row['name']} by {row['template']}: {1e6 * row['time']['median']:.1f} µs, {left}"


if __name__ == "__main__":
    main(__doc__, rows, text, layers=(), target="llvm", batch=int, algorithm="auto", rounds=9)
