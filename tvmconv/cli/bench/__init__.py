"""The command `tvmconv bench`, whose commands are in the files of this folder."""

from __future__ import annotations

import click

from .compare import compare
from .networks import networks
from .suite import suite


@click.group(commands=[suite, networks, compare])
def bench() -> None:
    """Measure kernels and networks beside their peers, and compare two measurements.

    Results are checked against the float64 reference before anything is timed. `tvmconv report` draws what --output has
    written.
    """
