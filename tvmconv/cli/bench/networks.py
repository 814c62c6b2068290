"""The command `tvmconv bench networks`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..console import note, print_json, print_table
from ..options import (
    POSITIVE,
    OutputFile,
    Positives,
    json_option,
    network_precision_option,
    target_option,
    threads_option,
)
from .report import collect, conditions, kept, require_torch

if TYPE_CHECKING:
    from tvmconv.bench.networks.network import NetworkRow


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME]...")
@target_option
@threads_option
@click.option(
    "--batch", "batches", type=Positives(), default="1", metavar="N,M", help="The numbers of images in a call."
)
@click.option(
    "--size",
    type=click.IntRange(min=64),
    help="The height and width of the images.  [default: 224; 299 for inception_v3]",
)
@click.option(
    "--sparsity",
    type=click.FloatRange(0, 1, max_open=True),
    metavar="S",
    help="The share of each layer's weights that is zero, the smallest ones; tvmconv's dense kernels take part, too.",
)
@click.option("--peers", metavar="A,B", help="Measure only these peers.  [default: all that can take part]")
@click.option("--rounds", type=POSITIVE, default=9, help="The number of times that each contender is timed.")
@network_precision_option
@click.option(
    "--jobs",
    type=POSITIVE,
    default=1,
    metavar="N",
    help="First build for all rows in so many processes at once, such as one for each two processors; 1 for none.",
)
@click.option("--builds", is_flag=True, help="Time each build in new processes, too: with nothing kept, and again.")
@click.option("--plot", type=OutputFile(".png"), metavar="FILE.png", help="Draw bars of the times.")
@click.option(
    "-o", "--output", type=OutputFile(), metavar="FILE", help="Write the JSON document here, anew after each network."
)
@json_option
def networks(
    names: tuple[str, ...],
    target: str,
    batches: list[int],
    size: int | None,
    sparsity: float | None,
    peers: str | None,
    rounds: int,
    precision: str,
    jobs: int,
    builds: bool,
    plot: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Time whole networks, by default five, beside others that run the same module of torch.

    Weights are random. Every contender's output is compared with float64 first; then they are called in turn, on a GPU
    each in a CUDA graph of all its launches, and times are medians of the rounds. "build" is from the module to the end
    of the first call, "memory" what the GPU has less then, and "file" what one deploys. "x tvmconv" is how many times
    as long as tvmconv it takes. A peer that cannot take part is listed with the reason. Ctrl-C and errors end the run
    with the networks before them, and where it is killed --output has them. --precision is that of tvmconv; "top-1" is
    the share of 32 random images of which a network has the same largest output as in float64. In half precision so are
    pytorch-half, torch-compile-half and torch-compile-max-autotune, which takes minutes to choose, whose images and
    weights are channels_last; pytorch-autocast casts those of float32 in each call, and tvmconv-float32 stays in
    float32. pytorch-tf32 is for a GPU. The exit code is 5 if tvmconv computes something wrong.

    Many rows are quicker with --jobs: networks and kernels of torch-compile are built side by side before any row is
    measured, so "build" stays empty. --builds measures that instead, in new processes, "cold" and "warm".
    """
    require_torch("tvmconv bench networks")

    from tvmconv.bench.networks.network import choose, choose_peers, measure_networks
    from tvmconv.bench.report import versions
    from tvmconv.targets import device_facts, device_of, resolve_target

    if plot is not None:
        from tvmconv.bench.plot import draw_networks
    resolved = resolve_target(target)
    device_of(resolved)
    kind = resolved.kind.name
    chosen = choose_peers(peers, precision)
    device, packages = device_facts(kind), versions(kind)

    def report(rows: list[NetworkRow]) -> object:
        return {"device": device, "versions": packages, "rounds": rounds, "rows": rows}

    measured = measure_networks(
        choose(names), resolved, chosen, rounds, batches, size, sparsity, note, precision, jobs, builds
    )
    if output is not None:
        measured = kept(measured, output, report)
    if not as_json:
        click.echo(conditions(device, packages, rounds))
    rows, ended = collect(measured if as_json else _printed(measured))
    if plot is not None and rows:
        draw_networks(rows, f"{device}, medians of {rounds} rounds", plot)
    if as_json:
        print_json(report(rows))
    elif len(rows) > 1:
        _print_means(rows)
    if ended:
        raise ended


def _printed(rows: Iterable[NetworkRow]) -> Iterator[NetworkRow]:
    """Yield the rows, each printed as soon as it is there."""
    for row in rows:
        zeros = "" if row.sparsity is None else f", {100 * row.sparsity:g}% zeros"
        word = f", precision {row.precision}" if row.top1 else ""
        click.echo(f"\n{row.name}, {row.batch} x 3 x {row.size} x {row.size}{zeros}{word}")
        columns = _columns(row)
        print_table(
            ["", *columns],
            [[name, *(cell.get(name, "") for cell in columns.values())] for name in row.times],
        )
        kernels = ", ".join(f"{count} by {kernel}" for kernel, count in row.kernels.items())
        click.echo(f"convolutions of tvmconv: {kernels}")
        for kind, absent in (("skipped", row.skipped), ("failed", row.failed)):
            for name, reason in absent.items():
                click.echo(f"{name} {kind}: {reason}")
        yield row


def _columns(row: NetworkRow) -> dict[str, dict[str, object]]:
    """Return the columns of a row's table, each with its cells by contender; those without any are left out."""
    columns: dict[str, dict[str, object]] = {
        "ms": {name: _milli(timing.median) for name, timing in row.times.items()},
        "images/s": {name: float(f"{row.images_per_second(name):.4g}") for name in row.times},
        "spread": {name: f"{_milli(timing.low)}-{_milli(timing.high)}" for name, timing in row.times.items()},
        "x tvmconv": {name: ratio for name in row.times if (ratio := row.times_faster(name))},
        "error": {name: f"{error:.1e}" for name, error in row.errors.items()},
        "dB": {name: f"{ratio:.1f}" for name, ratio in row.ratios.items()},
        "top-1, %": {name: float(f"{100 * share:.4g}") for name, share in row.top1.items()},
        "build, s": {name: round(seconds, 1) for name, seconds in row.build_seconds.items()},
        "cold, s": {name: round(seconds, 1) for name, seconds in row.cold_seconds.items()},
        "warm, s": {name: round(seconds, 1) for name, seconds in row.warm_seconds.items()},
        "memory, MB": {name: round(size / 1e6, 1) for name, size in row.memory.items()},
        "file, MB": {name: round(size / 1e6, 1) for name, size in row.file_bytes.items()},
    }
    return {title: cells for title, cells in columns.items() if cells}


def _print_means(rows: Sequence[NetworkRow]) -> None:
    from tvmconv.bench.report import geometric_means

    contenders = dict.fromkeys(name for row in rows for name in row.times if name != "tvmconv")
    for batch in dict.fromkeys(row.batch for row in rows):
        means = geometric_means([row for row in rows if row.batch == batch], contenders)
        click.echo(f"\ngeometric means at batch {batch} (of so many), times as long as tvmconv:")
        click.echo(", ".join(f"{mean:.3g} {name} ({count})" for name, (mean, count) in means.items()))


def _milli(seconds: float) -> float:
    """Return milliseconds in four digits."""
    return float(f"{1000 * seconds:.4g}")
