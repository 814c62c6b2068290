"""Reading of a report's files, whose kinds are told by their content, whatever their names."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tvmconv.dispatch.record import Log, load_from_file, read_unpacked
from tvmconv.problem.errors import InvalidArgumentError

from ..report import Report

EXPECTED = "a tuning log, or what a command of tvmconv printed with --json"


@dataclass(frozen=True)
class Source:
    """A file with its content: a benchmark of suites, a tuning log, or other JSON documents."""

    path: Path
    content: Report | Log | list[dict[str, Any]]

    @property
    def name(self) -> str:
        return self.path.name


def read(path: Path) -> Source:
    """Read a file; raise `InvalidArgumentError` for one that is none of these."""
    data = read_unpacked("file", path)
    log = load_from_file(path)
    if log.records or log.under_way:
        return Source(path, log)
    documents = _documents(data)
    if len(documents) == 1:
        try:
            return Source(path, msgspec.convert(documents[0], Report))
        except msgspec.ValidationError:
            pass
    if not documents:
        raise InvalidArgumentError("file", str(path), EXPECTED)
    return Source(path, documents)


def _documents(data: bytes) -> list[dict[str, Any]]:
    """Return the JSON objects in a file: one in all, one for each line, or one after other lines of output."""
    start = 0 if data.startswith(b"{") else data.find(b"\n{\n") + 1
    for candidates in ([data[start:]], data.splitlines()):
        found = [document for text in candidates if (document := _object(text)) is not None]
        if found:
            return found
    return []


def _object(text: bytes) -> dict[str, Any] | None:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
