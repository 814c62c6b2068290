"""The command `tvmconv report`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click

from .console import note, print_json
from .options import INPUT_FILE, OutputFile, json_option


@click.command()
@click.argument("paths", nargs=-1, required=True, type=INPUT_FILE, metavar="FILE...")
@click.option(
    "-o", "--output", type=OutputFile(".html"), required=True, metavar="REPORT.html", help="The page to write."
)
@click.option("--title", default="tvmconv report", help="The title of the page.")
@json_option
def report(paths: tuple[Path, ...], output: Path, title: str, as_json: bool) -> None:
    """Turn benchmarks and tuning logs into one HTML page that needs nothing else.

    FILE is a tuning log, plain or compressed, or what a command has printed with --json, `tvmconv bench` for one. The
    page has tables that sort, bars and rooflines of benchmarks, and what tuning brought, how it converged and what
    failed. It loads nothing from anywhere, and works without scripts but for the sorting.
    """
    from tvmconv.bench.html.files import read
    from tvmconv.bench.html.page import page

    sources = [read(path) for path in paths]
    html = page(title, sources)
    with TemporaryDirectory(dir=output.parent) as folder:  # the page appears whole or not at all
        written = Path(folder, output.name)
        written.write_text(html, encoding="utf-8")
        written.replace(output)
    if as_json:
        kinds = {source.name: type(source.content).__name__.lower() for source in sources}
        print_json({"output": str(output), "files": kinds})
    else:
        note(f"{output}: {len(sources)} file{'s' * (len(sources) > 1)}, {output.stat().st_size / 1024:.0f} KiB")
