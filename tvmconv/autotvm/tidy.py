"""Merging, pruning and compacting of tuning logs, and their replacement by the result. No record is changed."""

from __future__ import annotations

import gzip
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from math import inf, nan
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import tvm

from tvmconv.dispatch import template_named
from tvmconv.dispatch.call import Call
from tvmconv.dispatch.history import best_record, processor
from tvmconv.dispatch.record import Log, Record, encode, load_from_file, locked
from tvmconv.dispatch.trial import Stage, Status
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError

from .templates import VERSION


class Made(NamedTuple):
    """The key of comparable records: how their kernel was made, and the device. Each key has one best configuration."""

    problem: Problem | Call
    template: str
    version: int
    """The version of the template."""
    processor: str
    """The processor of the target: an architecture of GPUs, or a kind of CPU."""
    device: str
    tvm: str


def by_making(records: Iterable[Record]) -> dict[Made, list[Record]]:
    """Group records by problem, target, device, and versions of TVM and of the template."""
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
    """Return the default configuration's record, of records of one making, as `best_record` chooses it."""
    return best_record(record for record in records if record.config.index == 0)


def best_so_far(records: Iterable[Record]) -> list[float]:
    """Return the least cost in µs after each trial of a search, NaN before the first that worked."""
    costs = (1e6 * record.cost for record in records if record.stage is Stage.SEARCH)
    return [cost if cost < inf else nan for cost in accumulate(costs, min)]


def merged(logs: Iterable[Log]) -> list[Record]:
    """Return the records of several logs in the order of time, each once, including trials that have no end."""
    lines = {encode(record): record for log in logs for record in (*log.records, *log.under_way)}
    return sorted(lines.values(), key=lambda record: record.timestamp)


def pruned(log: Log) -> list[Record]:
    """Return the records that worked, and that the installed versions of TVM and of the templates may use.

    Those of templates that are not known here are among them: another process, which registers them, may use them.
    """
    return [record for record in log.records if record.status is Status.OK and _is_current(record)]


def unknown(records: Iterable[Record]) -> Counter[str]:
    """Return the number of records of each template that is not known here."""
    return Counter(record.template for record in records if _version(record) is None)


def compacted(log: Log) -> list[Record]:
    """Return the records that decide: those of the best configuration, and in addition those of the default."""
    kept: list[Record] = []
    for records in by_making(log.records).values():
        if (best := best_record(records)) is not None:
            kept += [record for record in records if record.stage is best.stage and _decides(record, best)]
    return kept


def best_records(logs: Iterable[Log]) -> list[Record]:
    """Return the records of the best configurations of several logs, each once."""
    ended = merged(Log(log.records) for log in logs)
    kept: list[Record] = []
    for records in by_making(ended).values():
        if (best := best_record(records)) is not None:
            entity, stage = best.config.entity, best.stage
            kept += [record for record in records if (record.config.entity, record.stage) == (entity, stage)]
    return kept


def readable(path: str | PathLike[str], expected: str = "a tuning log") -> Log:
    """Return the log in a file; refuse a file of anything else."""
    log = load_from_file(path)
    if log.skipped["foreign"] and not (log.records or log.under_way):
        raise InvalidArgumentError("log", str(path), expected)
    return log


def writable(path: str | PathLike[str]) -> Log:
    """Return the log in a file to be written, an empty one if there is no file; refuse a file of anything else."""
    return readable(path, "a tuning log, or a file that does not exist yet") if Path(path).exists() else Log()


def require_appendable(path: str | PathLike[str]) -> None:
    """Raise `InvalidArgumentError` for a path that is no log, and cannot become one, to which records are added."""
    if not isinstance(path, str | PathLike):
        raise InvalidArgumentError("log", path, "the path of a tuning log")
    if Path(path).suffix == ".gz":
        raise InvalidArgumentError("log", str(path), "a file that can be added to, which a compressed one cannot")
    if not Path(path).parent.is_dir():
        raise InvalidArgumentError("log", str(path), "a file in a folder that exists")
    if Path(path).is_dir():
        raise InvalidArgumentError("log", str(path), "a file, not a folder")
    writable(path)


def rewrite(path: str | PathLike[str], edit: Callable[[Log], Sequence[Record]]) -> Sequence[Record]:
    """Replace a log, an empty one if there is no file, by the result of `edit`, and return that.

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
                os.fsync(file.fileno())  # before it replaces the file on the disk
            written.replace(path)
    return records


def _decides(record: Record, best: Record) -> bool:
    return record.status is Status.OK and (record.config.entity == best.config.entity or record.config.index == 0)


def _is_current(record: Record) -> bool:
    return record.tvm_version == tvm.__version__ and _version(record) in (None, record.versions.template)


def _version(record: Record) -> int | None:
    """Return the present version of a record's template; None where the template is not known here."""
    if isinstance(record.problem, Call):
        return VERSION
    try:
        return template_named(record.template).VERSION
    except InvalidArgumentError:
        return None
