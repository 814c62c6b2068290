"""The command `tvmconv bench suite`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.checking.suites import load_suite
from tvmconv.problem.dtypes import DTYPES, QUANTIZED
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.support.store import write_whole

from ..console import json_document, note, print_json
from ..options import INPUT_FILE, POSITIVE, OutputFile, json_option, precision_option, target_option, threads_option
from .report import collect, kept, print_changes, print_report, require_no_regression, require_torch

if TYPE_CHECKING:
    from tvmconv.bench.report import Report, Roofs, Row


def share(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Parse the share in text such as "5%"."""
    if value is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?)%?", value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not of the form 5%", ctx, param)
    return float(match[1]) / 100


@click.command()
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@target_option
@threads_option
@click.option("--batch", type=POSITIVE, help="The batch, instead of the suite's.")
@click.option("--dtype", type=click.Choice(DTYPES), default="float32")
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="S",
    help="The share of zeros in the weights: tvmconv takes its sparse kernels, with other peers by default.",
)
@precision_option
@click.option(
    "--epilogue", is_flag=True, help="Add scale, shift and ReLU to each convolution; integers are stored as such."
)
@click.option(
    "--peers", metavar="A,B", help="Measure only these peers, and the copies.  [default: all but metaschedule]"
)
@click.option(
    "--cold", is_flag=True, help="Use other arrays in each call, so that none is in the GPU's L2, or a CPU's L3."
)
@click.option("--rounds", type=POSITIVE, default=9, help="The number of times that each contender is timed.")
@click.option("--memory", is_flag=True, help="Measure the memory that each takes, too; on a CPU this needs Linux.")
@click.option("--plot", type=OutputFile(".png"), metavar="FILE.png", help="Draw bars and a roofline.")
@click.option("--compare", type=INPUT_FILE, metavar="OLD.json", help="Compare tvmconv with what --json printed before.")
@click.option(
    "--fail-on-regress", callback=share, metavar="P%", help="With --compare: the share of speed that may be lost."
)
@click.option(
    "-o",
    "--output",
    type=OutputFile(),
    metavar="FILE",
    help="Write the JSON document here, anew after each convolution.",
)
@json_option
def suite(
    names: tuple[str, ...],
    target: str,
    batch: int | None,
    dtype: str,
    sparsity: float | None,
    precision: str,
    epilogue: bool,
    peers: str | None,
    cold: bool,
    rounds: int,
    memory: bool,
    plot: Path | None,
    compare: Path | None,
    fail_on_regress: float | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time the convolutions of suites beside other libraries, and beside a copy of the same bytes.

    The suites are depthwise-tutorial, depthwise-networks, depthwise-large, pointwise-networks, 3x3-networks,
    linear-networks, grouped-networks, im2win-thesis and sparse-paper. Contenders are called in turn, on a GPU in CUDA
    graphs; times are medians of the rounds. A peer that cannot take part is listed with the reason. "x PEER" is how
    many times as long as tvmconv the peer takes; tvmconv-direct and tvmconv-im2win are its algorithms side by side,
    gemm is PyTorch's matrix product, and on a CPU tvm is the naive direct convolution. With --sparsity a second table
    counts multiply-adds of a thread, machine instructions and bytes of code. --precision is that of tvmconv alone:
    others have theirs in their names, or are in float32. Ctrl-C and errors end the run with the rows before them, and
    where it is killed --output has them.
    The exit code is 5 if tvmconv computes something wrong, and 6 if a workload takes longer than --fail-on-regress
    allows, in the median and, beyond noise, in every round.
    """
    if fail_on_regress is not None and compare is None:
        raise click.UsageError("--fail-on-regress goes with --compare")
    if sparsity is not None and memory:
        raise click.UsageError("--memory goes with dense weights")
    if sparsity is not None and precision != DEFAULT:
        raise click.UsageError("--precision goes with dense weights")
    require_torch("tvmconv bench suite")

    import msgspec

    from tvmconv.bench.memory import can_measure
    from tvmconv.bench.report import Report, changes, read_report, require_comparable, versions
    from tvmconv.bench.roofs import measure_roofs
    from tvmconv.bench.suite import choose_peers, measure_suites
    from tvmconv.targets import backend_of, device_facts, device_of, resolve_target

    if plot is not None:
        from tvmconv.bench.plot import draw
    resolved = resolve_target(target)
    device_of(resolved)
    kind, cache = resolved.kind.name, "cold" if cold else "warm"
    device = device_facts(kind)
    assert device is not None  # device_of has found it
    chosen = choose_peers(peers, sparsity is not None, precision)
    tail: dict[str, Any] = {"epilogue": Epilogue(scale=True, shift=True, low=0.0)} if epilogue else {}
    if epilogue and dtype in QUANTIZED:
        tail["out_dtype"] = dtype
    workloads = {
        (suite, name): msgspec.structs.replace(workload, **tail)
        for suite in names
        for name, workload in load_suite(suite, kind, batch, dtype).items()
    }
    if memory and not can_measure(backend_of(resolved).on_gpu):
        raise InvalidArgumentError("memory", True, "a GPU, or Linux, which tells how much memory a process has held")
    old = read_report(compare) if compare else None
    if old:
        require_comparable(old, workloads, device, cache, sparsity, precision)
    packages = versions(kind)

    def report_of(rows: list[Row], roofs: Roofs | None = None) -> Report:
        return Report(
            target=json.loads(str(resolved)),
            device=device,
            versions=packages,
            cache=cache,
            rounds=rounds,
            roofs=roofs,
            rows=rows,
        )

    measured = measure_suites(workloads, resolved, chosen, rounds, cold, memory, note, sparsity, precision)
    rows, ended = collect(measured if output is None else kept(measured, output, report_of))
    report = report_of(rows, None if ended else measure_roofs(resolved))
    found = changes(report.rows, old) if old else []
    if plot and not ended:
        draw(report, plot)
    document = {**msgspec.to_builtins(report), "comparison": msgspec.to_builtins(found)}
    if output is not None:
        write_whole(output, json_document(document))
    if as_json:
        print_json(document)
    else:
        print_report(report)
        if found:
            print_changes(found)
    if ended:
        raise ended
    if fail_on_regress is not None:
        require_no_regression(found, fail_on_regress)
