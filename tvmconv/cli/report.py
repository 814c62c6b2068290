"""The command `tvmconv report`."""

from __future__ import annotations

from pathlib import Path

from tvmconv.support.store import write_whole

from .console import count, note, print_json
from .options import INPUT_FILE, JSON, argument, command, option, output


@command()
def report(
    paths: tuple[Path, ...] = argument(nargs=-1, required=True, type=INPUT_FILE, metavar="FILE..."),
    output: Path = output("The page to write.", ".html", "REPORT.html"),
    title: str = option("The title of the page.", default="tvmconv report"),
    as_json: bool = JSON,
) -> None:
    """Turn benchmarks and tuning logs into one HTML page that needs nothing else.

    FILE is a tuning log, plain or compressed, or what a command has printed with --json, `tvmconv bench` for one. The
    page has tables that sort, bars and rooflines of benchmarks, and what tuning brought, how it converged and what
    failed. It loads nothing from anywhere, and works without scripts but for the sorting.
    """
    from tvmconv.bench.html.files import read
    from tvmconv.bench.html.page import page

    sources = [read(path) for path in paths]
    write_whole(output, page(title, sources).encode())
    if as_json:
        kinds = {source.name: type(source.content).__name__.lower() for source in sources}
        print_json({"output": str(output), "files": kinds})
    else:
        note(f"{output}: {count(len(sources), 'file')}, {output.stat().st_size / 1024:.0f} KiB")
