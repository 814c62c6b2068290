"""The command `tvmconv bench sparsity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from tvmconv.problem.errors import InvalidArgumentError

from ..console import note, print_json, print_table
from ..options import POSITIVE, json_option, target_option
from .report import collect, conditions, print_code, require_torch

if TYPE_CHECKING:
    from tvmconv.bench.report import Row
    from tvmconv.problem.workload import ConvWorkload

SUITE = "sparse-paper"


@click.command()
@click.argument("names", nargs=-1, metavar="[OPERATOR]...")
@target_option
@click.option("--batch", type=POSITIVE, help="The batch, instead of 64 on a GPU and 1 on a CPU.")
@click.option("--sparsities", metavar="A,B", help="The shares of zeros.  [default: 0 to 0.9 in steps of 0.1]")
@click.option("--peers", metavar="A,B", default="pytorch,pytorch-tf32", help="The peers, as for `tvmconv bench suite`.")
@click.option("--rounds", type=POSITIVE, default=5, help="The number of times that each contender is timed.")
@json_option
def sparsity(
    names: tuple[str, ...],
    target: str,
    batch: int | None,
    sparsities: str | None,
    peers: str,
    rounds: int,
    as_json: bool,
) -> None:
    """Measure operators of the sparse code-generation paper, or some of them, over shares of zeros.

    "x PEER" is how many times as long as tvmconv's sparse kernel the peer takes; behind a table is from which share on
    tvmconv is faster. Zeros are at random places. Results are checked first; times are medians of rounds in which all
    take turns, with warm caches.
    """
    require_torch("tvmconv bench sparsity")

    from tvmconv.bench.choices import choose
    from tvmconv.bench.report import versions
    from tvmconv.bench.sparsity import STEPS, crossover, measure_sparsities
    from tvmconv.bench.suite import choose_peers
    from tvmconv.checking.suites import load_suite
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    kind = resolved.kind.name
    device_of(resolved)
    chosen = choose_peers(peers, sparse=True)
    shares = STEPS if sparsities is None else _shares(sparsities)
    wanted = choose(load_suite(SUITE, kind, batch), names, "operator")
    found, ended = collect(measure_sparsities(SUITE, wanted, resolved, chosen, shares, rounds, note))
    rows = {name: [row for row in found if row.name == name] for name in wanted}
    rows = {name: own for name, own in rows.items() if len(own) == len(shares)}
    crossovers = {name: {peer.name: crossover(own, peer.name) for peer in chosen} for name, own in rows.items()}
    device, packages = device_facts(kind), versions(kind)
    if as_json:
        facts = {"device": device, "versions": packages, "rounds": rounds, "suite": SUITE}
        print_json({**facts, "rows": found, "crossovers": crossovers})
    else:
        _print(rows, crossovers, wanted)
        click.echo(conditions(device, packages, rounds))
    if ended:
        raise ended


def _print(
    rows: Mapping[str, Sequence[Row]],
    crossovers: Mapping[str, Mapping[str, float | None]],
    workloads: Mapping[str, ConvWorkload],
) -> None:
    from tvmconv.bench.peers import OURS

    peers = dict.fromkeys(peer for found in crossovers.values() for peer in found)
    present = [peer for peer in peers if any(peer in row.times for own in rows.values() for row in own)]
    for name, own in rows.items():
        click.echo(f"{name}: {workloads[name]}")
        print_table(
            ["% zeros", "µs", *(f"x {peer}" for peer in present)],
            [
                [100 * (row.sparsity or 0), 1e6 * row.ours.median if row.ours else ""]
                + [row.times_faster(peer) or "" for peer in present]
                for row in own
            ],
        )
        for row in own:
            if reason := row.skipped.get(OURS.name):
                click.echo(f"no kernel with {100 * (row.sparsity or 0):g}% zeros: {reason}")
        found = {peer: crossovers[name][peer] for peer in present}
        click.echo(", ".join(f"faster than {peer} {_from(share)}" for peer, share in found.items()))
        print_code(own)
        click.echo()


def _from(share: float | None) -> str:
    return "nowhere" if share is None else f"from {100 * share:g}% zeros on"


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        shares = ()
    if not shares or not all(0 <= share < 1 for share in shares):
        raise InvalidArgumentError("sparsities", text, "shares such as 0,0.5,0.9")
    return shares
