"""Worker processes: TVM's, except for the way in which they begin."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from tvm.backend import _autoload_backends

from tvmconv.support import system
from tvmconv.targets import threads

from .fork_server import Fork, fork_server, readable
from .packages import importing

with importing():
    from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker


class WorkerPool(PopenPoolExecutor):  # type: ignore[misc]
    """Worker processes that start without torch and print nothing.

    There are at most `count`. A call that takes more than `timeout` seconds is killed with its process. A new process
    calls `initialize` first, and ends after `calls` calls if these are given.
    """

    def __init__(self, count: int, timeout: float, initialize: Callable[[], None], calls: int | None = None) -> None:
        super().__init__(count, timeout)
        self._new_worker = partial(_Worker, initialize, calls)

    def _worker_run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function in the process of this thread of the pool, which is started if there is none."""
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._worker_map:
                self._worker_map[thread] = self._new_worker()
            worker = self._worker_map[thread]
        worker.send(fn, args, kwargs)
        # In TVM's workers a thread watches the time, which never runs where a kernel has left Python's lock taken.
        if not readable(worker.descriptor, self._timeout):
            worker.kill()
            raise TimeoutError
        return worker.recv()


class _Worker(PopenWorker):  # type: ignore[misc]
    """A worker process, which starts when it is first sent a call."""

    _proc: Fork | None

    def __init__(self, initialize: Callable[[], None], calls: int | None) -> None:
        super().__init__(_begin, maximum_uses=calls)
        self._initialize = initialize
        self._ending = threading.Lock()

    @property
    def descriptor(self) -> int:
        """The file descriptor that the answer to a call comes through."""
        return int(self._reader.fileno())

    def _start(self) -> None:
        its_calls, our_calls = os.pipe()
        our_answers, its_answers = os.pipe()
        self._reader, self._writer = os.fdopen(our_answers, "rb"), os.fdopen(our_calls, "wb")
        try:
            self._proc = fork_server().fork(its_calls, its_answers)
        finally:
            os.close(its_calls)
            os.close(its_answers)
        self._initargs = (self._initialize, dict(os.environ), sys.path, system.processors())

    def send(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None, timeout: float | None = None) -> None:
        """Send a call; a process that has died since its last call, for whatever reason, is replaced first."""
        if (process := self._proc) is not None and not process.alive:
            self.kill()
        super().send(fn, args, kwargs, timeout)

    def kill(self) -> None:
        """End the process if there is one; the next call starts another.

        A thread of the pool does so where the process has died, perhaps since another thread has just ended it.
        """
        with self._ending:
            if self._proc is None:
                return
            process, pipes = self._proc, (self._writer, self._reader)
            self._proc = self._remaining_uses = None
        for pipe in pipes:
            with suppress(OSError):
                pipe.close()
        process.kill()


def _begin(initialize: Callable[[], None], environment: dict[str, str], path: list[str], cores: list[int]) -> None:
    """Let a new worker begin like a process that this one had started, with backends that may use a device."""
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = path
    system.run_on(cores)
    threads.configure()
    _autoload_backends._AUTO_LOAD_DONE = False
    _autoload_backends._autoload_backends()
    initialize()
