"""Tuning logs: one line of JSON for each trial, in the layout of AutoTVM's log version 0.2 with more fields.

`input`, `config`, `result`, `version` and `tvm_version` are AutoTVM's: the target, the template's name, the workload as
its only argument, that of several layers as JSON in a string, and as keyword arguments the share of zeros of a
sparse kernel, a precision other than float32 and the direction of a gradient, or the arguments of a template of one's
own; knobs as `[name, "ot", value]`, of such a template also of the kinds "sp", "re" and "an"; costs in seconds, error
number, seconds of the trial and the time of day. `device`, `versions`, `status`, `reason` and `stage` are what AutoTVM
left out.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec

from tvmconv.problem import FORWARD, FusedProblem, Problem, Workload, problem_of, workload_from
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.support.version import __version__
from tvmconv.targets import DeviceFacts

from .call import Call
from .registry import is_for_fused, knob_name
from .task import Entity
from .trial import MeasureInput, MeasureResult, Stage, Status

LAYOUT = 0.2
REASON_CHARACTERS = 300
KINDS = frozenset({"sp", "re", "an", "ot"})
"""The kinds of knobs that a user-defined template may have; tvmconv's own have "ot" alone."""

Result = tuple[tuple[float, ...], int, float, float]


class Keywords(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Arguments of a template besides the workload, such as `{}`, `{"sparsity": 0.9}` or `{"precision": "tf32"}`."""

    sparsity: float | None = None
    precision: str = DEFAULT
    direction: str = FORWARD


Input = tuple[str, str, tuple[ConvWorkload | bool | int | float | str | tuple[Any, ...] | None, ...], Keywords]


class Config(msgspec.Struct, frozen=True):
    """A configuration as AutoTVM writes it."""

    index: int | None
    """The configuration's number in the space; None for one outside it."""
    code_hash: str | None
    entity: Entity


class Versions(msgspec.Struct, frozen=True):
    """The versions of the software that made the kernel, besides TVM itself."""

    tvmconv: str
    ffi: str
    template: int
    """The `VERSION` of the template: while it is the same, the knobs mean the same."""


class Record(msgspec.Struct, frozen=True):
    """A line of a log; `Record.of` makes it from a trial."""

    input: Input
    config: Config
    result: Result
    version: float
    tvm_version: str
    device: DeviceFacts
    versions: Versions
    status: Status
    stage: Stage
    reason: str | None = None

    @classmethod
    def of(cls, trial: MeasureInput, result: MeasureResult) -> Record:
        """Return the record of a trial."""
        task = trial.task
        reason = None if result.reason is None else bounded(result.reason)
        return cls(
            input=(str(task.target), task.name, *_passed(task.problem)),
            config=Config(task.space.number(trial.config), None, task.entity(trial.config)),
            result=(
                tuple(float(f"{cost:.6g}") for cost in result.costs),
                int(result.error_no),
                round(result.all_cost, 3),
                round(result.timestamp, 3),
            ),
            version=LAYOUT,
            tvm_version=_tvm_version(),
            device=result.device,
            versions=Versions(__version__, _ffi_version(), task.maker.version),
            status=result.status,
            stage=trial.stage,
            reason=reason,
        )

    @property
    def target(self) -> str:
        """The target as JSON."""
        return self.input[0]

    @property
    def template(self) -> str:
        """The template's name, such as "cuda/depthwise"."""
        return self.input[1]

    @property
    def problem(self) -> Problem | Call:
        """The problem that the kernel solves, or the call of a template of one's own."""
        arguments = self.input[2]
        workload, keywords = arguments[0] if arguments else None, self.input[3]
        of_fused = is_for_fused(self.template)
        described = workload_from(workload) if of_fused and isinstance(workload, str) else workload
        if isinstance(described, Workload):
            return problem_of(described, self.sparsity, keywords.precision, keywords.direction)
        return Call(self.template, msgspec.json.encode(arguments).decode())

    @property
    def workload(self) -> Workload:
        """The workload of a kernel; a record of a template of one's own has none."""
        problem = self.problem
        if isinstance(problem, Call):
            raise InvalidArgumentError("record", str(problem), "one of tvmconv's own templates")
        return problem.workload

    @property
    def sparsity(self) -> float | None:
        """The share of zeros for a sparse kernel."""
        return self.input[3].sparsity

    @property
    def knobs(self) -> dict[str, Any]:
        """The configuration's knobs by name."""
        return {name: value for name, _, value in self.config.entity}

    @property
    def costs(self) -> tuple[float, ...]:
        """The seconds of one call, averaged over each repeat."""
        return self.result[0]

    @property
    def cost(self) -> float:
        """The median of the costs; infinite for a trial that failed."""
        return self.outcome.cost

    @property
    def outcome(self) -> MeasureResult:
        """The result of the trial, as tuners get it."""
        return MeasureResult(self.costs, self.status, self.reason, self.result[2], self.timestamp, self.device)

    @property
    def timestamp(self) -> float:
        """The time when the trial ended, in seconds since 1970."""
        return self.result[3]


@dataclass
class Log:
    """The content of a log."""

    records: list[Record] = field(default_factory=list)
    """The trials that ended, in the order of the file."""
    under_way: list[Record] = field(default_factory=list)
    """The trials that began, and whose end was not written."""
    skipped: Counter[str] = field(default_factory=Counter)
    """The number of lines that are no records: "torn" ones, of a writer that was killed, and "foreign" ones."""

    def __iter__(self) -> Iterator[Record]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)


class _Target(msgspec.Struct):
    """The fields that are read of a record's target."""

    kind: str
    mattr: tuple[str, ...] = ()


def _passed(problem: Problem | Call) -> tuple[tuple[Any, ...], Keywords]:
    """Return the arguments of a template for a problem."""
    if isinstance(problem, Call):
        return problem.args, Keywords()
    workload = problem.workload.to_json() if isinstance(problem, FusedProblem) else problem.workload
    return (workload,), Keywords(problem.sparsity, problem.precision, problem.direction)


def encode(record: Record) -> bytes:
    """Return a record as one line of JSON, with its end."""
    return msgspec.json.encode(record) + b"\n"


def decode(line: bytes) -> Record:
    """Return the record in a line; raise `msgspec.DecodeError` for a torn one, `ValidationError` for a foreign one."""
    record = msgspec.json.decode(line, type=Record)
    if record.version != LAYOUT:
        raise msgspec.ValidationError(f"layout {record.version}")
    if record.status is Status.OK and not (record.costs and min(record.costs) > 0):
        raise msgspec.ValidationError(f"costs {record.costs}")
    is_ours = is_for_fused(record.template) or any(isinstance(each, ConvWorkload) for each in record.input[2])
    if is_ours and len(record.input[2]) > 1:
        raise msgspec.ValidationError(f"arguments {record.input[2]}")
    for name, kind, value in record.config.entity:
        if kind not in ({"ot"} if is_ours else KINDS) or isinstance(value, tuple) is (kind == "ot"):
            raise msgspec.ValidationError(f"knob {name} of kind {kind}")
    try:
        msgspec.json.decode(record.target, type=_Target)
    except msgspec.DecodeError:
        raise msgspec.ValidationError(f"target {record.target}") from None
    if not is_ours:
        return record
    try:
        record.problem  # noqa: B018, a precision or a direction that there is not, or a workload that makes no sense
    except InvalidArgumentError as error:
        raise msgspec.ValidationError(str(error)) from None
    return _with_present_names(record)


def _with_present_names(record: Record) -> Record:
    """Return a record with the names that the knobs of its template, one of tvmconv's, have now."""
    entity = tuple((knob_name(record.template, name), kind, value) for name, kind, value in record.config.entity)
    return msgspec.structs.replace(record, config=msgspec.structs.replace(record.config, entity=entity))


def load_from_file(path: str | PathLike[str]) -> Log:
    """Return the log in a file, plain or with a name that ends in .gz; lines that are no records are counted.

    >>> from importlib.resources import files
    >>> from tvmconv.autotvm import record
    >>> shipped = files("tvmconv.tuning_logs") / "nvidia-h200.jsonl"
    >>> log = record.load_from_file(shipped)
    >>> log.records[0].template.startswith("cuda/"), log.records[0].cost < 1e-3
    (True, True)
    """
    log = Log()
    started: dict[tuple[Any, ...], Record] = {}
    for line in filter(None, read_unpacked("log", Path(path)).split(b"\n")):
        try:
            record = decode(line)
        except msgspec.ValidationError:
            log.skipped["foreign"] += 1
        except (msgspec.DecodeError, UnicodeDecodeError):
            log.skipped["torn" if line.lstrip().startswith(b"{") else "foreign"] += 1
        else:
            key = (record.input[:2], record.problem, record.config.entity, record.stage)
            if record.status is Status.STARTED:
                started[key] = record
            else:
                started.pop(key, None)
                log.records.append(record)
    log.under_way = list(started.values())
    return log


SKIPPED = {"foreign": "of another format", "torn": "cut off"}
"""The words for the kinds of lines that are no records."""


def skipped_text(skipped: Mapping[str, int]) -> str:
    """Say how many lines of a log are no records."""
    return f"lines left out: {', '.join(f'{count} {SKIPPED[kind]}' for kind, count in skipped.items())}"


def append(path: str | PathLike[str], records: Iterable[Record]) -> None:
    """Append records to a log, whole lines even when several processes write to it.

    They are on their way to the disk when it returns. Behind a torn line a new one is begun.

    >>> from importlib.resources import files
    >>> from tvmconv.autotvm import record
    >>> shipped = files("tvmconv.tuning_logs") / "nvidia-h200.jsonl"
    >>> record.append("some.jsonl", record.load_from_file(shipped).records[:3])
    >>> len(record.load_from_file("some.jsonl"))
    3
    """
    lines = b"".join(map(encode, records))
    try:
        with locked(Path(path)) as descriptor:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                lines = b"\n" + lines
            while lines:
                lines = lines[os.write(descriptor, lines) :]
    except OSError as error:
        error.filename = os.fspath(path)  # a full disk does not say which
        raise


@contextmanager
def locked(path: Path) -> Iterator[int]:
    """Yield the file, made if there is none, open for appending and locked against other writers."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), path.stat()):  # else it was replaced in the meantime
                yield descriptor
                return
        finally:
            os.close(descriptor)


def bounded(reason: str) -> str:
    """Return a reason as one line of at most `REASON_CHARACTERS`."""
    line = " ".join(reason.split())
    return line if len(line) <= REASON_CHARACTERS else line[: REASON_CHARACTERS - 1] + "…"


def read_unpacked(argument: str, path: Path) -> bytes:
    """Return the content of the file that an argument names, plain or with a name that ends in .gz."""
    if not path.is_file():
        raise InvalidArgumentError(argument, str(path), "a file that exists")
    content = path.read_bytes()
    if path.suffix != ".gz":
        return content
    try:
        return gzip.decompress(content)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise InvalidArgumentError(argument, str(path), "a whole file that gzip has compressed") from None


@cache
def _tvm_version() -> str:
    import tvm

    return str(tvm.__version__)


@cache
def _ffi_version() -> str:
    import tvm_ffi

    return str(tvm_ffi.__version__)
