"""What a run of suites has measured: its JSON, what follows from it, and how it compares with an older one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Protocol

import msgspec

from ..errors import InvalidArgumentError
from ..problem import Problem
from ..targets import DeviceFacts
from ..workload import ConvWorkload
from .code import Code
from .memory import Memory
from .peers import LIMITS, OURS
from .timing import Timing, times_as_long

PACKAGES = ("tvmconv", "apache-tvm", "apache-tvm-ffi", "torch", "triton", "onnxruntime")


class Row(msgspec.Struct, frozen=True):
    """A workload of a suite beside its peers; times are seconds of one call."""

    suite: str
    name: str
    workload: str
    flops: int
    bytes: int
    """The least that has to be read and written."""
    selection: str | None
    """Why tvmconv took the configuration that it took."""
    times: dict[str, Timing]
    skipped: dict[str, str]
    """Why peers took no part."""
    failed: dict[str, str]
    """What was wrong with peers that took part."""
    memory: Memory | None = None
    """Beside operands and output, which are `bytes`; None where it was not asked for."""
    sparsity: float | None = None
    """Share of zeros in the weight; None for a dense one, which tvmconv's dense kernels take."""
    code: Code | None = None
    """Of the sparse kernel."""

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes it the same row in another report."""
        return self.suite, self.name, self.workload

    @property
    def ours(self) -> Timing | None:
        return self.times.get(OURS.name)

    @property
    def limit(self) -> float:
        """Seconds of the faster copy."""
        return min(self.times[limit.name].median for limit in LIMITS)

    def times_faster(self, peer: str) -> float | None:
        """How many times as long the peer takes as tvmconv; None unless both have run."""
        return times_as_long(self.times, peer, OURS.name)

    def memory_of(self, contender: str) -> int | None:
        """Bytes that a contender takes in all, operands and output too; None where it was not measured."""
        if self.memory is None or contender not in self.memory.measured:
            return None
        return self.bytes + self.memory.measured[contender]


class Roofs(msgspec.Struct, frozen=True):
    """What the device can do: bytes and floating-point operations in a second."""

    bandwidth: float
    flops: float


class Report(msgspec.Struct, frozen=True):
    """A run of suites: where, with what, how, and what came out."""

    target: dict[str, Any]
    device: DeviceFacts
    versions: dict[str, str]
    cache: str
    """ "warm" where all calls have the same arrays, "cold" where no array is in a cache."""
    rounds: int
    roofs: Roofs | None
    rows: list[Row]


class Change(msgspec.Struct, frozen=True):
    """tvmconv's time for a workload, in an older report and now."""

    suite: str
    name: str
    workload: str
    old: Timing
    new: Timing

    @property
    def ratio(self) -> float:
        return self.new.median / self.old.median

    def is_regression(self, allowed: float) -> bool:
        """Whether it got slower by more than the allowed share, and not in the median alone, which is noisy."""
        return self.ratio > 1 + allowed and self.new.low > self.old.median


def versions(kind: str) -> dict[str, str]:
    """Versions of what takes part in measuring for a kind of target, as far as it is installed."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if kind == "cuda":
        import torch

        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


class Compared(Protocol):
    """What was timed beside peers."""

    def times_faster(self, peer: str) -> float | None: ...


def geometric_means(rows: Iterable[Compared], peers: Iterable[str]) -> dict[str, tuple[float, int]]:
    """How many times as fast as each peer tvmconv is, and on how many rows both have run; without such rows, none."""
    ratios = {peer: [ratio for row in rows if (ratio := row.times_faster(peer)) is not None] for peer in peers}
    return {peer: (geometric_mean(found), len(found)) for peer, found in ratios.items() if found}


def memory_means(rows: Iterable[Row], contender: str, peers: Iterable[str]) -> dict[str, tuple[float, int]]:
    """Memory of a contender in parts of each peer's, in all: the mean, and of how many rows; without rows, none."""
    shares = {
        peer: [
            ours / theirs
            for row in rows
            if (ours := row.memory_of(contender)) is not None and (theirs := row.memory_of(peer)) is not None
        ]
        for peer in peers
    }
    return {peer: (fmean(found), len(found)) for peer, found in shares.items() if found}


def read_report(path: Path) -> Report:
    """A report that `tvmconv bench suite --json` has printed."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Report)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidArgumentError(
            "compare", str(path), f"a report of `tvmconv bench suite --json` ({error})"
        ) from None


def require_comparable(
    old: Report,
    workloads: Mapping[tuple[str, str], ConvWorkload],
    device: DeviceFacts | None,
    cache: str,
    sparsity: float | None = None,
) -> None:
    """Raises `InvalidArgumentError` for a report of other conditions, or with none of the workloads.

    Conditions are the device, its threads and the state of the caches; a workload's key is its suite and its name.
    """
    then, now = (f"{facts}, {state} caches" for facts, state in ((old.device, old.cache), (device, cache)))
    if then != now:
        raise InvalidArgumentError("compare", then, f"a report measured as this run is: {now}")
    keys = {(*names, str(Problem(workload, sparsity))) for names, workload in workloads.items()}
    if not any(row.key in keys for row in old.rows if row.ours):
        raise InvalidArgumentError("compare", [row.name for row in old.rows], "a report with a workload of this run")


def changes(rows: Iterable[Row], old: Report) -> list[Change]:
    """Of the rows that both have."""
    before = {row.key: row.ours for row in old.rows}
    return [
        Change(row.suite, row.name, row.workload, then, row.ours)
        for row in rows
        if row.ours is not None and (then := before.get(row.key)) is not None
    ]
