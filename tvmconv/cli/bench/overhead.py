"""The command `tvmconv bench overhead`."""

from __future__ import annotations

import click

from ..console import print_json, print_table
from ..options import POSITIVE, json_option, target_option, threads_option
from .report import conditions, require_torch


@click.command()
@target_option
@threads_option
@click.option("--rounds", type=POSITIVE, default=25, help="The number of times that each call is timed.")
@json_option
def overhead(target: str, rounds: int, as_json: bool) -> None:
    """Measure what a call from Python costs, beside PyTorch.

    A depthwise convolution of 64 outputs is called as a function, as a compiled operator and as a network, with arrays
    of torch and on a CPU of NumPy, with and without `out`. On a GPU the time is until the call returns. Results are
    checked first; times are in µs, medians of rounds in which all of them take turns.
    """
    require_torch("tvmconv bench overhead")

    from tvmconv.bench.overhead import PYTORCH, WORKLOAD, measure_overhead
    from tvmconv.bench.report import versions
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    device_of(resolved)
    kind = resolved.kind.name
    ways = measure_overhead(resolved, rounds)
    device, packages = device_facts(kind), versions(kind)
    if as_json:
        facts = {"device": device, "versions": packages, "rounds": rounds, "workload": WORKLOAD}
        print_json({**facts, "rows": ways})
        return
    pytorch = next(way.time.median for way in ways if way.name == PYTORCH)
    print_table(
        ["call", "arrays", "µs", "low-high", f"{PYTORCH} / this"],
        [
            [
                way.name,
                way.arrays,
                1e6 * way.time.median,
                f"{1e6 * way.time.low:.2f}-{1e6 * way.time.high:.2f}",
                pytorch / way.time.median,
            ]
            for way in ways
        ],
    )
    click.echo(f"{WORKLOAD}, {conditions(device, packages, rounds)}")
