"""The report of a run of suites: its JSON, numbers derived from it, and the comparison of two documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts, backend_named

from .peers import LIMITS, OURS, known_peers
from .timing import Timing, micro

if TYPE_CHECKING:
    from .networks.network import NetworkRow

PACKAGES = ("tvmconv", "apache-tvm", "apache-tvm-ffi", "torch", "triton", "onnxruntime", "openvino")


class Row(msgspec.Struct, frozen=True):
    """The results for a workload of a suite beside its peers; times are seconds of one call."""

    suite: str
    name: str
    workload: str
    flops: int
    bytes: int
    """The least number of bytes that have to be read and written."""
    selection: str | None
    """The reason why tvmconv took its configuration."""
    times: dict[str, Timing]
    skipped: dict[str, str]
    """The reasons why peers took no part."""
    failed: dict[str, str]
    """The failures of peers that took part."""
    sparsity: float | None = None
    """The share of zeros in the weight; None for a dense one, which tvmconv's dense kernels take."""

    @property
    def ours(self) -> Timing | None:
        return self.times.get(OURS.name)

    @property
    def limit(self) -> float | None:
        """The seconds of the faster copy; None in reports from before both were measured."""
        if not all(limit.name in self.times for limit in LIMITS):
            return None
        return min(self.times[limit.name].median for limit in LIMITS)


class Roofs(msgspec.Struct, frozen=True):
    """The limits of the device, as `roofs.measure_roofs` finds them: what it does in a second."""

    bandwidth: float
    """The bytes that a large copy reads and writes."""
    flops: float
    """The floating-point operations of float32 multiply-adds, two for each."""


class Report(msgspec.Struct, frozen=True):
    """The report of a run of suites: target, device, versions, settings and results."""

    target: dict[str, Any]
    device: DeviceFacts
    versions: dict[str, str]
    cache: str
    """The state of the caches: "warm" where all calls have the same arrays, "cold" where no array is in a cache."""
    rounds: int
    roofs: Roofs | None
    """The limits of the device; None where the run ended early, and in reports from before they were measured."""
    rows: list[Row]


def versions(kind: str) -> dict[str, str]:
    """Return the versions of packages that take part in measuring for a kind of target, where they are installed."""
    found = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    if backend_named(kind).on_gpu and "torch" in found:
        import torch

        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


Compared: TypeAlias = "Row | NetworkRow"
"""A row of times beside peers."""


def times_faster(row: Compared, peer: str) -> float | None:
    """Return the ratio of the peer's median time to tvmconv's; None unless both have run."""
    if not {peer, OURS.name} <= row.times.keys():
        return None
    return row.times[peer].median / row.times[OURS.name].median


def peers_of(rows: Sequence[Row]) -> list[str]:
    """Return the peers that have run on a row: those of today in their order, then others."""
    ran = {name for row in rows for name in row.times} - {OURS.name, *(limit.name for limit in LIMITS)}
    known = known_peers()
    return [*(name for name in known if name in ran), *sorted(ran - known.keys())]


def figures(rows: Sequence[Row]) -> tuple[list[str], list[list[str | float | None]]]:
    """Return headers and cells of the table of tvmconv's times and rates beside the copies, and of peers' ratios."""
    peers = peers_of(rows)
    headers = ["name", "µs", "spread", "GFLOP/s", "GB/s", "copy, µs", "% of copy", *(f"x {peer}" for peer in peers)]
    return headers, [[row.name, *_ours(row), *(times_faster(row, peer) for peer in peers)] for row in rows]


def _ours(row: Row) -> list[str | float | None]:
    copy = None if row.limit is None else micro(row.limit)
    if row.ours is None:
        return [None, None, None, None, copy, None]
    seconds = row.ours.median
    share = None if row.limit is None else 100 * row.limit / seconds
    return [micro(seconds), row.ours.spread, row.flops / seconds / 1e9, row.bytes / seconds / 1e9, copy, share]


def absent(rows: Iterable[Compared]) -> dict[tuple[str, str, str], list[str]]:
    """Return the names of the rows that a peer is missing in, by the peer, "skipped" or "failed", and the reason."""
    found: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        for kind, reasons in (("skipped", row.skipped), ("failed", row.failed)):
            for peer, reason in reasons.items():
                found.setdefault((peer, kind, reason), []).append(row.name)
    return found


def geometric_means(rows: Sequence[Compared], peers: Iterable[str]) -> dict[str, tuple[float, int]]:
    """Return for each peer how many times as fast tvmconv is, on average, and on how many rows both have run.

    Peers without such rows are left out.
    """
    found = {peer: [ratio for row in rows if (ratio := times_faster(row, peer)) is not None] for peer in peers}
    return {peer: (geometric_mean(ratios), len(ratios)) for peer, ratios in found.items() if ratios}


IDENTITY = ("suite", "name", "workload", "batch", "size", "sparsity", "precision")
"""The fields that identify the same row in another document."""


class Measured(msgspec.Struct, frozen=True):
    """The device, the state of the caches and the rows of a document of `tvmconv bench`."""

    device: DeviceFacts
    rows: list[dict[str, Any]]
    cache: str = "warm"

    def __str__(self) -> str:
        return f"{self.device}, {self.cache} caches"


class Change(msgspec.Struct, frozen=True):
    """The change of tvmconv's time for a row from an older document to a newer one."""

    name: str
    old: Timing
    new: Timing

    @property
    def ratio(self) -> float:
        return self.new.median / self.old.median

    def is_regression(self, allowed: float) -> bool:
        """Return whether the time grew by more than the allowed share, and in every round, as medians are noisy."""
        return self.ratio > 1 + allowed and self.new.low > self.old.median


def changes(old: Path, new: Path) -> list[Change]:
    """Return the changes of the rows that two files of `tvmconv bench suite` or `bench networks` have in common.

    Raises `InvalidArgumentError` for other files, for those of different devices, numbers of threads or states of
    caches, and where they have no row in common.
    """
    before, after = _read("old", old), _read("new", new)
    if str(before) != str(after):
        raise InvalidArgumentError("new", str(after), f"a document measured as the older one is: {before}")
    then, now = _times(before), _times(after)
    if not then.keys() & now.keys():
        raise InvalidArgumentError("new", str(new), f"a document with a row of {old}")
    return [Change(name, then[key, name], timing) for (key, name), timing in now.items() if (key, name) in then]


def _read(argument: str, path: Path) -> Measured:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Measured)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        expected = f"what `tvmconv bench suite` or `bench networks` wrote ({error})"
        raise InvalidArgumentError(argument, str(path), expected) from None


def _times(document: Measured) -> dict[tuple[str, str], Timing]:
    """Return tvmconv's times by the identity of a row, as text, and the name that it is shown by."""
    found = {}
    for row in document.rows:
        if timing := dict(row.get("times") or {}).get(OURS.name):
            words = [row.get("suite"), row.get("name"), f"batch {row['batch']}" if row.get("batch") else None]
            key = str([row.get(field) for field in IDENTITY])
            found[key, " ".join(str(word) for word in words if word)] = msgspec.convert(timing, Timing)
    return found
