"""Checks in worker processes, several side by side, which may hang or die without ending the rest."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import as_completed

from tvmconv.autotvm.measure.processes import WorkerPool
from tvmconv.support import system


def isolated(
    check: Callable[[str], str], names: Iterable[str], jobs: int, seconds: float
) -> Iterator[tuple[str, str | None]]:
    """Yield for each name the answer of `check`, a function of a module, in any order.

    It is None for a name that takes more than `seconds`, that fails, or whose process dies; the others do not notice.
    """
    pool = WorkerPool(jobs, seconds, _begin)
    answers = {pool.submit(check, name): name for name in names}
    try:
        for answer in as_completed(answers):
            yield answers[answer], None if answer.exception() else answer.result()
    finally:
        for answer in answers:
            answer.cancel()
        pool.shutdown()


def _begin() -> None:
    system.follow_parent()
    os.environ["TVM_BIND_THREADS"] = "0"  # TVM would bind all of these processes to the same cores
