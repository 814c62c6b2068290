"""The layers of the im2win thesis without each optimization of the schedule in turn, as in its figure 4-9.

    python benchmarks/ablation.py                                                             # on the CPU
    python benchmarks/ablation.py --target cuda --algorithm direct --rounds 5 -o ablation-h200.json
    python benchmarks/ablation.py conv4 conv9 --batch 8

The configuration that tvmconv chooses for a layer, or that of `--algorithm`, loses its micro-kernel, its vector loads,
its prefetch and its packed weight, or what a CPU has of the like. All configurations of a layer are checked, and take
turns, with warm caches; "left" is the share of the speed that is left without each.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from script import Row, main

from tvmconv.bench import choose
from tvmconv.bench.peers.ours import Tvmconv
from tvmconv.bench.suite import How, measure_row
from tvmconv.bench.timing import Timing
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target

SUITE = "im2win-thesis"


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
        configs = [*dict.fromkeys([whole, *without.values()])]
        peers = [Tvmconv(name=str(config), algorithm=algorithm, config=config) for config in configs]
        measured = measure_row(SUITE, name, workload, target, peers, How(given.rounds)).times
        times = {config: measured[str(config)] for config in configs}
        lost = {
            each: {**timed(config, times), "left": times[whole].median / times[config].median}
            for each, config in without.items()
        }
        about = {"name": name, "workload": str(problem), "flops": workload.flops, "template": selection.name}
        yield {**about, **timed(whole, times), "without": lost}


def timed(config: Any, times: Mapping[Any, Timing]) -> Row:
    """Return a configuration with its time."""
    return dict(msgspec.to_builtins({"config": config, "time": times[config]}))


if __name__ == "__main__":
    main(__doc__, rows, layers=(), target="llvm", batch=int, algorithm="auto", rounds=9)
