"""The command `tvmconv bench`, whose commands are in the files of this folder."""

from __future__ import annotations

import click

from .ablation import ablation
from .accuracy import accuracy
from .defaults import defaults
from .networks import networks
from .overhead import overhead
from .sparsity import sparsity
from .suite import suite
from .tune_tir import tune_tir
from .tuners import tuners
from .tutorial import tutorial


@click.group(commands=[suite, networks, sparsity, tutorial, ablation, accuracy, defaults, tuners, tune_tir, overhead])
def bench() -> None:
    """Measure kernels and networks beside their peers, and tuners beside each other.

    Results are checked against the float64 reference before anything is timed.
    """
