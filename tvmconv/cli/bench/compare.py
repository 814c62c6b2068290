"""The command `tvmconv bench compare`."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

import click
import msgspec

from tvmconv.problem.errors import RegressionError

from ..console import print_json, print_table
from ..options import INPUT_FILE, JSON, Parsed, argument, command, matched, option


def share(text: str) -> float:
    """Parse the share in text such as "5%"."""
    return float(matched(r"(\d+(?:\.\d+)?)%?", text)[1]) / 100


@command()
def compare(
    old: Path = argument(type=INPUT_FILE, metavar="OLD.json"),
    new: Path = argument(type=INPUT_FILE, metavar="NEW.json"),
    fail_on_regress: float | None = option(
        "The share of speed that may be lost.", type=Parsed("share", share, "is not of the form 5%"), metavar="P%"
    ),
    as_json: bool = JSON,
) -> None:
    """Compare tvmconv's times in two files of `tvmconv bench suite` or `bench networks`.

    Both have to be of the same device, number of threads and state of caches; rows that one of them lacks are left out.
    The exit code is 6 if a row takes longer than --fail-on-regress allows, in the median and, beyond noise, in every
    round.
    """
    from tvmconv.bench.report import changes
    from tvmconv.bench.timing import micro

    found = changes(old, new)
    mean = geometric_mean(change.ratio for change in found)
    if as_json:
        rows = [{**msgspec.to_builtins(change), "ratio": change.ratio} for change in found]
        print_json({"rows": rows, "geometric_mean": mean})
    else:
        print_table(
            ["name", "µs before", "spread", "µs now", "spread", "now / before"],
            [
                [each.name, *(cell for t in (each.old, each.new) for cell in (micro(t.median), t.spread)), each.ratio]
                for each in found
            ],
        )
        click.echo(f"geometric mean of {len(found)}: {mean:.3g} times as long as before")
    slower = [each for each in found if fail_on_regress is not None and each.is_regression(fail_on_regress)]
    if slower:
        told = ", ".join(
            f"{each.name} ({micro(each.new.median)} µs, before {micro(each.old.median)})" for each in slower
        )
        raise RegressionError(f"slower than before by more than {100 * (fail_on_regress or 0):g}%: {told}")
