"""The run of a benchmark: its conditions, its rows whatever ends it, and the file that keeps them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from tvmconv.problem.errors import MissingPackageError
from tvmconv.support.store import write_whole

from ..console import json_document

if TYPE_CHECKING:
    import tvm

    from tvmconv.targets import DeviceFacts

T = TypeVar("T")


@dataclass(frozen=True)
class Run:
    """The target of a benchmark, and the conditions that its figures depend on."""

    target: tvm.target.Target
    device: DeviceFacts
    versions: dict[str, str]
    rounds: int
    cache: str

    @property
    def kind(self) -> str:
        return str(self.target.kind.name)

    @property
    def facts(self) -> dict[str, Any]:
        """The conditions in the JSON documents."""
        return {"device": self.device, "versions": self.versions, "rounds": self.rounds}

    def __str__(self) -> str:
        packages = ", ".join(f"{package} {version}" for package, version in self.versions.items())
        return f"{self.device}, {self.cache} caches, medians of {self.rounds} rounds; {packages}"


def begin(command: str, target: str, rounds: int, cache: str = "warm") -> Run:
    """Return the run of a command that measures beside torch; raise an error where torch or the device is missing."""
    if find_spec("torch") is None:
        raise MissingPackageError("torch", "torch", f"tvmconv bench {command}")
    from tvmconv.bench.report import versions
    from tvmconv.targets import device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    device_of(resolved)
    device = device_facts(resolved.kind.name)
    assert device is not None  # device_of has found it
    return Run(resolved, device, versions(resolved.kind.name), rounds, cache)


@contextmanager
def collected(rows: Iterable[T]) -> Iterator[tuple[list[T], BaseException | None]]:
    """Yield all rows, or those before the error or Ctrl-C that ended them, which is raised again after the block.

    So an error does not cost the rows of a long run.
    """
    found: list[T] = []
    ended: BaseException | None = None
    try:
        found.extend(rows)
    except (Exception, KeyboardInterrupt) as error:
        ended = error
    yield found, ended
    if ended:
        raise ended


def kept(rows: Iterable[T], path: Path | None, report: Callable[[list[T]], object]) -> Iterator[T]:
    """Yield rows; with each the file, if any, has the report of all until then, whole, whatever ends the run."""
    found: list[T] = []
    for row in rows:
        found.append(row)
        if path is not None:
            write_whole(path, json_document(report(found)))
        yield row
