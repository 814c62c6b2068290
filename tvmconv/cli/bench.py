"""The command `tvmconv bench`: each of its commands is in a file of its own."""

from __future__ import annotations

import click

from .bench_ablation import ablation
from .bench_accuracy import accuracy
from .bench_defaults import defaults
from .bench_networks import networks
from .bench_overhead import overhead
from .bench_sparsity import sparsity
from .bench_suite import suite
from .bench_tune_tir import tune_tir
from .bench_tuners import tuners
from .bench_tutorial import tutorial


@click.group(commands=[suite, networks, sparsity, tutorial, ablation, accuracy, defaults, tuners, tune_tir, overhead])
def bench() -> None:
    """Measure kernels and networks beside their peers, and tuners beside each other.

    Results are checked against the float64 reference before anything is timed.
    """
