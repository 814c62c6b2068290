"""The command `tvmconv bench networks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tvmconv.support.store import write_whole

from ..console import note, print_json, print_table
from ..options import (
    JSON,
    NAMES,
    NETWORK_PRECISION,
    SHARE,
    TARGET,
    OutputFile,
    Parsed,
    argument,
    command,
    matched,
    option,
    output,
    plot,
    rounds,
    threads_option,
)
from .report import print_absent, print_means
from .run import begin, collected, kept

if TYPE_CHECKING:
    from tvmconv.bench.html.charts import Chart
    from tvmconv.bench.networks.network import NetworkRow


def positives(text: str) -> list[int]:
    """Parse the positive integers in text such as "1,32"."""
    return [int(matched(r"0*[1-9]\d*", each.strip())[0]) for each in dict.fromkeys(text.split(","))]


POSITIVES = Parsed("integers", positives, "is no list of positive integers such as 1,32")


@command(threads_option)
def networks(
    names: tuple[str, ...] = argument(nargs=-1, metavar="[NAME]..."),
    target: str = TARGET,
    batches: list[int] = option(
        "The numbers of images in a call.", "--batch", type=POSITIVES, default="1", metavar="N,M"
    ),
    size: int | None = option(
        "The height and width of the images.  [default: 224; 299 for inception_v3]", type=click.IntRange(min=64)
    ),
    sparsity: float | None = option(
        "The share of each layer's weights that is zero, the smallest; tvmconv's dense kernels take part, too.",
        type=SHARE,
        metavar="S",
    ),
    peers: list[str] | None = option(
        "Measure only these.  [default: all that can take part]", type=NAMES, metavar="A,B"
    ),
    rounds: int = rounds(9),
    precision: str = NETWORK_PRECISION,
    jobs: int = option(
        "First build for all rows in so many processes at once, such as one for each two processors; 1 for none.",
        default=1,
        metavar="N",
    ),
    plot: Path | None = plot("Draw bars of the times."),
    csv: Path | None = option(
        "Write images per second in the columns of timm's benchmarks, with the contender behind them.",
        type=OutputFile(".csv"),
        metavar="FILE.csv",
    ),
    output: Path | None = output("Write the JSON document here, anew after each network."),
    as_json: bool = JSON,
) -> None:
    """Time whole networks, by default five, beside others that run the same module of torch.

    Weights are random. Every contender's output is compared with float64 first; then they are called in turn, on a GPU
    each in a CUDA graph of all its launches, and times are medians of the rounds. "build" is from the module to the end
    of the first call, "memory" what the GPU has less then, and "file" what one deploys. "x tvmconv" is how many times
    as long as tvmconv it takes. A peer that cannot take part is listed with the reason, one that is not installed with
    the command that installs it. Ctrl-C and errors end the run with the networks before them, and where it is killed
    --output has them.

    --precision is that of tvmconv; "top-1" is the share of 32 random images of which a network has the same largest
    output as in float64. In half precision so are pytorch-half, torch-compile-half and torch-compile-max-autotune,
    which takes minutes to choose, whose images and weights are channels_last; pytorch-autocast casts those of float32
    in each call, and tvmconv-float32 stays in float32. pytorch-tf32 is for a GPU. onnxruntime and openvino are for a
    CPU: ONNX Runtime computes in float32, OpenVINO in half precision where --precision is one. The exit code is 5 if
    tvmconv computes something wrong.

    Many rows are quicker with --jobs: networks and kernels of torch-compile are built side by side before any row is
    measured, so "build" stays empty.
    """
    run = begin("networks", target, rounds)

    from tvmconv.bench.html.charts import below_each_other
    from tvmconv.bench.networks.network import choose_networks, choose_peers, measure_networks, timm_table

    chosen = choose_peers(peers, precision)

    def report(rows: list[NetworkRow]) -> object:
        return {**run.facts, "rows": rows}

    measured = measure_networks(
        choose_networks(names), run.target, chosen, rounds, batches, size, sparsity, note, precision, jobs
    )
    measured = kept(measured, output, report)
    if not as_json:
        click.echo(run)
    with collected(measured if as_json else _printed(measured)) as (rows, _):
        if plot is not None and (chart := _bars(rows)):
            write_whole(plot, below_each_other([chart], [str(run)]).encode())
        if csv is not None:
            write_whole(csv, timm_table(rows).encode())
        if as_json:
            print_json(report(rows))
        elif len(rows) > 1:
            contenders = dict.fromkeys(name for row in rows for name in row.times if name != "tvmconv")
            for batch in dict.fromkeys(row.batch for row in rows):
                print_means(f"\nbatch {batch}, ", [row for row in rows if row.batch == batch], contenders)


def _bars(rows: Sequence[NetworkRow]) -> Chart | None:
    from tvmconv.bench.html.suites import relative_bars

    return relative_bars(
        {f"{row.name} {row.batch}": {name: time.median for name, time in row.times.items()} for row in rows}
    )


def _printed(rows: Iterable[NetworkRow]) -> Iterator[NetworkRow]:
    """Yield the rows, each of which is printed before."""
    for row in rows:
        zeros = "" if row.sparsity is None else f", {100 * row.sparsity:g}% zeros"
        word = f", precision {row.precision}" if row.top1 else ""
        click.echo(f"\n{row.name}, {row.batch} x 3 x {row.size} x {row.size}{zeros}{word}")
        columns = _columns(row)
        print_table(["", *columns], [[name, *(cells.get(name) for cells in columns.values())] for name in row.times])
        kernels = ", ".join(f"{count} by {kernel}" for kernel, count in row.kernels.items())
        click.echo(f"convolutions of tvmconv: {kernels}")
        print_absent([row])
        yield row


def _columns(row: NetworkRow) -> dict[str, dict[str, object]]:
    """Return the columns of a row's table, each with its cells by contender; those without any are left out."""
    from tvmconv.bench.report import times_faster

    columns: dict[str, dict[str, object]] = {
        "ms": {name: _milli(timing.median) for name, timing in row.times.items()},
        "images/s": {name: float(f"{row.images_per_second(name):.4g}") for name in row.times},
        "spread": {name: f"{_milli(timing.low)}-{_milli(timing.high)}" for name, timing in row.times.items()},
        "x tvmconv": {name: ratio for name in row.times if (ratio := times_faster(row, name))},
        "error": {name: f"{error:.1e}" for name, error in row.errors.items()},
        "dB": {name: f"{ratio:.1f}" for name, ratio in row.ratios.items()},
        "top-1, %": {name: float(f"{100 * share:.4g}") for name, share in row.top1.items()},
    }
    for title, unit, values in (
        ("build, s", 1, row.build_seconds),
        ("memory, MB", 1e6, row.memory),
        ("file, MB", 1e6, row.file_bytes),
    ):
        columns[title] = {name: round(value / unit, 1) for name, value in values.items()}
    return {title: cells for title, cells in columns.items() if cells}


def _milli(seconds: float) -> float:
    """Return milliseconds in four digits."""
    return float(f"{1000 * seconds:.4g}")
