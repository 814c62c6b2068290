"""Output of the commands: data on stdout, as a table or as JSON, and progress on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click
import msgspec

if TYPE_CHECKING:
    from rich.status import Status

UNLIMITED = 10_000
"""The width of a pipe or a file in columns, which folds no line."""


def print_json(data: Any) -> None:
    """Print one JSON document; NaN and infinity, which JSON does not have, become null."""
    click.echo(json_document(data))


def json_document(data: Any) -> bytes:
    """Return one JSON document as `print_json` prints it."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2)


def print_table(headers: Sequence[str], rows: Iterable[Sequence[object]], styles: Sequence[str] = ()) -> None:
    """Print rows below their headers, numbers to the right; a cell of None is empty.

    `styles`, one for each row, colour a terminal alone.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    if not console.is_terminal:
        console.width = UNLIMITED
    cells = [list(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for i, header in enumerate(headers):
        numbers = bool(cells) and all(isinstance(row[i], int | float | None) for row in cells)
        table.add_column(header, justify="right" if numbers else "left", overflow="fold")
    for i, row in enumerate(cells):
        table.add_row(*(Text(_cell(value)) for value in row), style=styles[i] if styles else None)
    console.print(table)


def progress(message: str) -> AbstractContextManager[Status]:
    """Show a message, while the block runs, on a terminal."""
    from rich.console import Console
    from rich.text import Text

    return Console(stderr=True).status(Text(message))


def note(message: str) -> None:
    """Print a message on stderr."""
    click.echo(message, err=True)


def count(number: int, noun: str) -> str:
    """Return a number before a noun, such as "2 files"."""
    return f"{number} {noun}{'s' * (number > 1)}"


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool | str):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)
