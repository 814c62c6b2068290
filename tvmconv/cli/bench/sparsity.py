"""The command `tvmconv bench sparsity`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from ..console import note, print_json, print_table
from ..options import JSON, NAMES, TARGET, Parsed, argument, command, option, rounds
from .report import print_code
from .run import begin, collected

if TYPE_CHECKING:
    from tvmconv.bench.report import Row

SUITE = "sparse-paper"


def shares(text: str) -> list[float]:
    """Parse the shares in text such as "0,0.5"."""
    found = [float(part) for part in text.split(",")]
    if not all(0 <= share < 1 for share in found):
        raise ValueError(text)
    return found


SHARES = Parsed("shares", shares, "is no list of shares such as 0,0.5,0.9")


@command()
def sparsity(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[OPERATOR]..."),
    target: str = TARGET,
    batch: int | None = option("The batch, instead of 64 on a GPU and 1 on a CPU."),
    sparsities: list[float] | None = option(
        "The shares of zeros.  [default: 0 to 0.9 in steps of 0.1]", type=SHARES, metavar="A,B"
    ),
    peers: list[str] = option(
        "The peers, as for `tvmconv bench suite`.", type=NAMES, metavar="A,B", default="pytorch,pytorch-tf32"
    ),
    rounds: int = rounds(5),
    as_json: bool = JSON,
) -> None:
    """Measure operators of the sparse code-generation paper, or some of them, over shares of zeros.

    "x PEER" is how many times as long as tvmconv's sparse kernel the peer takes; behind a table is from which share on
    tvmconv is faster. Zeros are at random places. Results are checked first; times are medians of rounds in which all
    take turns, with warm caches.
    """
    run = begin("sparsity", target, rounds)

    from tvmconv.bench import choose
    from tvmconv.bench.report import SPARSITIES, crossover
    from tvmconv.bench.suite import How, choose_peers, measure_rows
    from tvmconv.checking.suites import load_suite

    hows = [How(rounds, sparsity=share) for share in sparsities or SPARSITIES]
    chosen = choose_peers(peers, hows[0])
    wanted = choose(load_suite(SUITE, run.kind, batch), names, "operator")
    workloads = {(SUITE, name): workload for name, workload in wanted.items()}
    with collected(measure_rows(workloads, run.target, chosen, hows, note)) as (found, _):
        rows = {name: [row for row in found if row.name == name] for name in wanted}
        rows = {name: own for name, own in rows.items() if len(own) == len(hows)}
        crossovers = {name: {peer.name: crossover(own, peer.name) for peer in chosen} for name, own in rows.items()}
        if as_json:
            print_json({**run.facts, "suite": SUITE, "rows": found, "crossovers": crossovers})
        else:
            for name, own in rows.items():
                click.echo(f"{name}: {wanted[name]}")
                _print(own, crossovers[name])
            click.echo(run)


def _print(rows: Sequence[Row], crossovers: Mapping[str, float | None]) -> None:
    from tvmconv.bench.peers import OURS

    found = {peer: share for peer, share in crossovers.items() if any(peer in row.times for row in rows)}
    print_table(
        ["% zeros", "µs", *(f"x {peer}" for peer in found)],
        [
            [100 * (row.sparsity or 0), row.ours and 1e6 * row.ours.median, *map(row.times_faster, found)]
            for row in rows
        ],
    )
    for row in rows:
        if reason := row.skipped.get(OURS.name):
            click.echo(f"no kernel with {100 * (row.sparsity or 0):g}% zeros: {reason}")
    click.echo(", ".join(f"faster than {peer} {_from(share)}" for peer, share in found.items()))
    print_code(rows)
    click.echo()


def _from(share: float | None) -> str:
    return "nowhere" if share is None else f"from {100 * share:g}% zeros on"
