"""The command `tvmconv bench suite`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.checking.suites import load_suite
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.precision import DEFAULT
from tvmconv.support.store import write_whole

from ..console import json_document, note, print_json
from ..options import (
    DTYPE,
    JSON,
    NAMES,
    PRECISION,
    SHARE,
    TARGET,
    argument,
    command,
    option,
    output,
    plot,
    rounds,
    threads_option,
)
from .report import print_report
from .run import begin, collected, kept

if TYPE_CHECKING:
    from tvmconv.bench.report import Report, Roofs, Row


@command(threads_option)
def suite(
    names: tuple[str, ...] = argument(nargs=-1, required=True, metavar="NAME..."),
    target: str = TARGET,
    batch: int | None = option("The batch, instead of the suite's."),
    dtype: str = option("The type of operands.", type=DTYPE, default="float32"),
    sparsity: float | None = option(
        "The share of zeros in the weights: tvmconv takes its sparse kernels, with other peers by default.",
        type=SHARE,
        metavar="S",
    ),
    precision: str = PRECISION,
    epilogue: bool = option("Add scale, shift and ReLU to each convolution; integers are stored as such."),
    peers: list[str] | None = option(
        "Measure only these peers, and the copies.  [default: all but metaschedule]", type=NAMES, metavar="A,B"
    ),
    cold: bool = option("Use other arrays in each call, so that none is in the GPU's L2, or a CPU's L3."),
    rounds: int = rounds(9),
    plot: Path | None = plot("Draw bars and a roofline."),
    output: Path | None = output("Write the JSON document here, anew after each convolution."),
    as_json: bool = JSON,
) -> None:
    """Time the convolutions of suites beside other libraries, and beside a copy of the same bytes.

    The suites are depthwise-tutorial, depthwise-networks, depthwise-large, pointwise-networks, 3x3-networks,
    linear-networks, grouped-networks, im2win-thesis and sparse-paper. Contenders are called in turn, on a GPU in CUDA
    graphs; times are medians of the rounds. A peer that cannot take part is listed with the reason. "x PEER" is how
    many times as long as tvmconv the peer takes; tvmconv-direct and tvmconv-im2win are its algorithms side by side,
    gemm is PyTorch's matrix product, and on a CPU tvm is the naive direct convolution. --precision is that of tvmconv
    alone: others have theirs in their names, or are in float32. Ctrl-C and errors end the run with the rows before
    them, and where it is killed --output has them. The exit code is 5 if tvmconv computes something wrong.
    """
    if sparsity is not None and precision != DEFAULT:
        raise click.UsageError("--precision goes with dense weights")
    run = begin("suite", target, rounds, "cold" if cold else "warm")

    import msgspec

    from tvmconv.bench.html.charts import below_each_other
    from tvmconv.bench.html.suites import charts_of
    from tvmconv.bench.report import Report
    from tvmconv.bench.roofs import measure_roofs
    from tvmconv.bench.suite import How, choose_peers, measure_rows

    how = How(rounds, cold, sparsity, precision)
    chosen = choose_peers(peers, how)
    tail: dict[str, Any] = {"epilogue": Epilogue(scale=True, shift=True, low=0.0)} if epilogue else {}
    if epilogue and dtype in QUANTIZED:
        tail["out_dtype"] = dtype
    workloads = {
        (suite, name): msgspec.structs.replace(workload, **tail)
        for suite in names
        for name, workload in load_suite(suite, run.kind, batch, dtype).items()
    }

    def report_of(rows: list[Row], roofs: Roofs | None = None) -> Report:
        return Report(json.loads(str(run.target)), run.device, run.versions, run.cache, run.rounds, roofs, rows)

    measured = measure_rows(workloads, run.target, chosen, how, note)
    with collected(kept(measured, output, report_of)) as (rows, ended):
        report = report_of(rows, None if ended else measure_roofs(run.target))
        if plot is not None:
            charts, remark = charts_of(rows, report)
            write_whole(plot, below_each_other(charts, [str(run), remark]).encode())
        if output is not None:
            write_whole(output, json_document(report))
        if as_json:
            print_json(report)
        else:
            print_report(report, run)
