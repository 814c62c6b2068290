"""Tuning logs merged, pruned, compacted, and put in the place of what they were made of. No record is changed."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import tvm

from ..dispatch import template_named
from ..dispatch.call import Call
from ..dispatch.history import best_record, processor
from ..dispatch.record import Log, Record, encode, load_from_file, locked
from ..dispatch.trial import Status
from ..errors import InvalidArgumentError
from ..problem import Problem
from .templates import VERSION


class Made(NamedTuple):
    """What a kernel was made of and measured on: costs compare, and one configuration is best, where all is equal."""

    problem: Problem | Call
    template: str
    version: int
    """Of the template."""
    processor: str
    """What the target was: an architecture of GPUs, or a kind of CPU."""
    device: str
    tvm: str


def by_making(records: Iterable[Record]) -> dict[Made, list[Record]]:
    """The records of each problem, target, device, and versions of TVM and of the template."""
    groups: dict[Made, list[Record]] = {}
    for record in records:
        made = Made(
            record.problem,
            record.template,
            record.versions.template,
            processor(record.target),
            str(record.device),
            record.tvm_version,
        )
        groups.setdefault(made, []).append(record)
    return groups


def default_record(records: Iterable[Record]) -> Record | None:
    """Of records of one making, the default configuration's, as `best_record` has it."""
    return best_record(record for record in records if record.config.index == 0)


def merged(logs: Iterable[Log]) -> list[Record]:
    """The records of several logs in the order of time, each once; trials that have no end are among them."""
    lines = {encode(record): record for log in logs for record in (*log.records, *log.under_way)}
    return sorted(lines.values(), key=lambda record: record.timestamp)


def pruned(log: Log) -> list[Record]:
    """The records that worked, and that the installed versions of TVM and of the templates may use."""
    return [record for record in log.records if record.status is Status.OK and _is_current(record)]


def compacted(log: Log) -> list[Record]:
    """The records that decide: those of the best configuration, and beside them those of the default."""
    kept: list[Record] = []
    for records in by_making(log.records).values():
        if (best := best_record(records)) is not None:
            kept += [record for record in records if record.stage is best.stage and _decides(record, best)]
    return kept


def picked(logs: Iterable[Log]) -> list[Record]:
    """The records of the best configurations of several logs, each once."""
    ended = merged(Log(log.records) for log in logs)
    kept: list[Record] = []
    for records in by_making(ended).values():
        if (best := best_record(records)) is not None:
            entity, stage = best.config.entity, best.stage
            kept += [record for record in records if (record.config.entity, record.stage) == (entity, stage)]
    return kept


def readable(path: str | PathLike[str], expected: str = "a tuning log") -> Log:
    """The log in a file; refuses a file of anything else."""
    log = load_from_file(path)
    if log.skipped["foreign"] and not (log.records or log.under_way):
        raise InvalidArgumentError("log", str(path), expected)
    return log


def writable(path: str | PathLike[str]) -> Log:
    """The log in a file that is to be written to, an empty one if there is no file; refuses one of anything else."""
    return readable(path, "a tuning log, or a file that does not exist yet") if Path(path).exists() else Log()


def rewrite(path: str | PathLike[str], edit: Callable[[Log], Sequence[Record]]) -> Sequence[Record]:
    """Puts what `edit` makes of a log, an empty one if there is no file, in its place, and returns it.

    The file changes at once or not at all, and writers of other processes wait; a name that ends in .gz is compressed.
    """
    path = Path(path).resolve()
    writable(path)
    with locked(path):
        records = edit(load_from_file(path))
        content = b"".join(map(encode, records))
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            written = Path(folder, path.name)
            with written.open("wb") as file:
                file.write(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
                file.flush()
                os.fsync(file.fileno())  # before it takes the place of what is on the disk
            written.replace(path)
    return records


def _decides(record: Record, best: Record) -> bool:
    return record.status is Status.OK and (record.config.entity == best.config.entity or record.config.index == 0)


def _is_current(record: Record) -> bool:
    if isinstance(record.problem, Call):
        version: Any = VERSION
    else:
        try:
            version = template_named(record.template).VERSION
        except InvalidArgumentError:
            return False
    return bool(record.versions.template == version and record.tvm_version == tvm.__version__)
