"""The command `tvmconv bench ablation`."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import geometric_mean
from typing import TYPE_CHECKING

import click
import msgspec

from ..console import note, print_json, print_table
from ..options import POSITIVE, Algorithm, json_option, target_option
from .report import collect, conditions, require_torch

if TYPE_CHECKING:
    from tvmconv.bench.ablation import Ablation


@click.command()
@click.argument("names", nargs=-1, metavar="[LAYER]...")
@target_option
@click.option("--batch", type=POSITIVE, help="The batch, instead of the thesis's 128 on a GPU and 1 on a CPU.")
@click.option("--algorithm", type=Algorithm(), default="auto", help="The algorithm of the layers.")
@click.option("--rounds", type=POSITIVE, default=9, help="The number of times that each kernel is timed.")
@json_option
def ablation(
    names: tuple[str, ...], target: str, batch: int | None, algorithm: str, rounds: int, as_json: bool
) -> None:
    """Measure the layers of the im2win thesis, or some of them, without each optimization in turn.

    The configuration that tvmconv chooses for a layer loses its micro-kernel, its vector loads, its prefetch and its
    packed weight, or what a CPU has of the like; "without" is the speed that is left, in percent. Results are checked
    first; times are medians of rounds in which all kernels of a layer take turns, with warm caches.
    """
    require_torch("tvmconv bench ablation")

    from tvmconv.bench.ablation import SUITE, measure_ablations
    from tvmconv.bench.choices import choose
    from tvmconv.bench.report import versions
    from tvmconv.checking.suites import load_suite
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    device_of(resolved)
    kind = resolved.kind.name
    workloads = choose(load_suite(SUITE, kind, batch), names, "layer")
    found, ended = collect(measure_ablations(workloads, resolved, algorithm, rounds, note))
    device, packages = device_facts(kind), versions(kind)
    if as_json:
        rows = [
            {
                "name": each.row.name,
                "workload": each.row.workload,
                "flops": each.row.flops,
                "template": each.selection.name,
                "config": msgspec.to_builtins(each.selection.config),
                "time": each.whole,
                "without": {
                    name: {"config": msgspec.to_builtins(config), "time": each.times[name]}
                    for name, config in each.without.items()
                },
            }
            for each in found
        ]
        print_json({"device": device, "versions": packages, "rounds": rounds, "suite": SUITE, "rows": rows})
    else:
        _print(found)
        click.echo(conditions(device, packages, rounds))
    if ended:
        raise ended


def _print(found: Sequence[Ablation]) -> None:
    names = list(dict.fromkeys(name for each in found for name in each.without))
    print_table(
        ["name", "template", "µs", "GFLOP/s", *(f"% without {name}" for name in names)],
        [
            [each.row.name, each.selection.name, 1e6 * each.whole.median, each.row.flops / each.whole.median / 1e9]
            + [100 * each.shares[name] if name in each.shares else "" for name in names]
            for each in found
        ],
    )
    means = {name: [each.shares[name] for each in found if name in each.shares] for name in names}
    texts = [f"{100 * geometric_mean(shares):.3g}% without {name} ({len(shares)})" for name, shares in means.items()]
    click.echo(f"geometric means (of so many): {', '.join(texts)}")
