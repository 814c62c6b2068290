"""The command `tvmconv bench overhead`."""

from __future__ import annotations

import click

from ..console import print_json, print_table
from ..options import JSON, TARGET, command, rounds, threads_option
from .run import begin


@command(threads_option)
def overhead(target: str = TARGET, rounds: int = rounds(25), as_json: bool = JSON) -> None:
    """Measure what a call from Python costs, beside PyTorch.

    A depthwise convolution of 64 outputs is called as a function, as a compiled operator and as a network, with arrays
    of torch and on a CPU of NumPy, with and without `out`. On a GPU the time is until the call returns. Results are
    checked first; times are in µs, medians of rounds in which all of them take turns.
    """
    run = begin("overhead", target, rounds)

    from tvmconv.bench.overhead import PYTORCH, WORKLOAD, measure_overhead

    ways = measure_overhead(run.target, rounds)
    if as_json:
        print_json({**run.facts, "workload": WORKLOAD, "rows": ways})
        return
    pytorch = next(way.time.median for way in ways if way.name == PYTORCH)
    print_table(
        ["call", "arrays", "µs", "low-high", f"{PYTORCH} / this"],
        [[way.name, way.arrays, 1e6 * way.time.median, way.time.spread, pytorch / way.time.median] for way in ways],
    )
    click.echo(f"{WORKLOAD}, {run}")
