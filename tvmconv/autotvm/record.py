"""Tuning logs under AutoTVM's names; `tvmconv.dispatch.record` describes them."""

from __future__ import annotations

from os import PathLike

from tvmconv.dispatch.record import Log, Record, append, decode, encode, load_from_file
from tvmconv.problem.errors import names_of

from .gone import NAMES
from .tidy import best_records, readable, rewrite

__all__ = ["Log", "Record", "append", "decode", "encode", "load_from_file", "pick_best"]

__getattr__ = names_of(__name__, NAMES)


def pick_best(in_file: str | PathLike[str], out_file: str | PathLike[str]) -> None:
    """Write the best records of a log, which are worth applying, to another log; records that it has compete with them.

    There is a best configuration for each problem, target, device and version; the records that decide on it are kept.

    >>> from importlib.resources import files
    >>> from tvmconv.autotvm import record
    >>> shipped = files("tvmconv.tuning_logs") / "nvidia-h200.jsonl"
    >>> record.pick_best(shipped, "best.jsonl")
    >>> len(record.load_from_file("best.jsonl")) <= len(record.load_from_file(shipped))
    True
    """
    given = readable(in_file)
    rewrite(out_file, lambda there: best_records([there, given]))
