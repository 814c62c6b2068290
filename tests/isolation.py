"""Checks in processes of their own, several side by side, which may hang or die without ending the rest."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from time import monotonic
from typing import NamedTuple


class _Worker(NamedTuple):
    process: multiprocessing.process.BaseProcess
    pipe: Connection


def isolated(
    check: Callable[[str], str], names: Iterable[str], jobs: int, seconds: float
) -> Iterator[tuple[str, str | None]]:
    """Yield for each name the answer of `check`, a function of a module, in any order.

    It is None for a name that takes more than `seconds`, or whose process dies; the others do not notice.
    """
    waiting = deque(names)
    running: dict[_Worker, tuple[str, float]] = {}

    def begin(worker: _Worker | None) -> None:
        if not waiting:
            return
        worker = worker or _started(check)
        name = waiting.popleft()
        worker.pipe.send(name)
        running[worker] = name, monotonic() + seconds

    try:
        for _ in range(min(jobs, len(waiting))):
            begin(None)
        while running:
            soonest = min(until for _, until in running.values())
            ready = wait([worker.pipe for worker in running], max(soonest - monotonic(), 0))
            for worker, (name, until) in [*running.items()]:
                if worker.pipe in ready:
                    try:
                        answer = worker.pipe.recv()
                    except EOFError:
                        answer = None
                elif until <= monotonic():
                    answer = None
                else:
                    continue
                del running[worker]
                if answer is None:
                    _end(worker)
                yield name, answer
                begin(None if answer is None or not waiting else worker)
                if worker not in running and answer is not None:
                    _end(worker)
    finally:
        for worker in running:
            _end(worker)


def _started(check: Callable[[str], str]) -> _Worker:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(check, theirs), daemon=True)
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _end(worker: _Worker) -> None:
    worker.process.kill()
    worker.process.join()
    worker.pipe.close()


def _work(check: Callable[[str], str], pipe: Connection) -> None:
    os.environ["TVM_BIND_THREADS"] = "0"  # TVM would bind all of these processes to the same cores
    while True:
        pipe.send(check(pipe.recv()))
