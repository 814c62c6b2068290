"""The command `tvmconv bench ablation`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

import click
import msgspec

from ..console import note, print_json, print_table
from ..options import JSON, TARGET, algorithm, argument, command, option, rounds
from .run import begin, collected

if TYPE_CHECKING:
    from tvmconv.bench.ablation import Ablation


@command()
def ablation(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[LAYER]..."),
    target: str = TARGET,
    batch: int | None = option("The batch, instead of the thesis's 128 on a GPU and 1 on a CPU."),
    algorithm: str = algorithm("The algorithm of the layers."),
    rounds: int = rounds(9),
    as_json: bool = JSON,
) -> None:
    """Measure the layers of the im2win thesis, or some of them, without each optimization in turn.

    The configuration that tvmconv chooses for a layer loses its micro-kernel, its vector loads, its prefetch and its
    packed weight, or what a CPU has of the like; "without" is the speed that is left, in percent. Results are checked
    first; times are medians of rounds in which all kernels of a layer take turns, with warm caches.
    """
    run = begin("ablation", target, rounds)

    from tvmconv.bench import choose
    from tvmconv.bench.ablation import SUITE, measure_ablations
    from tvmconv.bench.suite import How
    from tvmconv.checking.suites import load_suite

    workloads = choose(load_suite(SUITE, run.kind, batch), names, "layer")
    with collected(measure_ablations(workloads, run.target, algorithm, How(rounds), note)) as (found, _):
        if as_json:
            print_json({**run.facts, "suite": SUITE, "rows": [_record(each) for each in found]})
        else:
            _print(found)
            click.echo(run)


def _record(ablation: Ablation) -> dict[str, object]:
    return {
        "name": ablation.row.name,
        "workload": ablation.row.workload,
        "flops": ablation.row.flops,
        "template": ablation.selection.name,
        "config": msgspec.to_builtins(ablation.selection.config),
        "time": ablation.whole,
        "without": {
            name: {"config": msgspec.to_builtins(config), "time": ablation.times[name]}
            for name, config in ablation.without.items()
        },
    }


def _print(found: Sequence[Ablation]) -> None:
    names = list(dict.fromkeys(name for each in found for name in each.without))
    shares = [{name: 100 * share for name, share in each.shares.items()} for each in found]
    print_table(
        ["name", "template", "µs", "GFLOP/s", *(f"% without {name}" for name in names)],
        [
            [each.row.name, each.selection.name, 1e6 * each.whole.median, each.row.flops / each.whole.median / 1e9]
            + [of_layer.get(name) for name in names]
            for each, of_layer in zip(found, shares, strict=True)
        ],
    )
    means = {name: [of_layer[name] for of_layer in shares if name in of_layer] for name in names}
    texts = [f"{geometric_mean(values):.3g}% without {name} ({len(values)})" for name, values in means.items()]
    click.echo(f"geometric means (of so many): {', '.join(texts)}")
