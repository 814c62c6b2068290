"""Worker processes, which are TVM's but for how they start."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

from tvm.support.popen_pool import PopenPoolExecutor, PopenWorker

MAIN = """
import runpy, sys
sys.modules["torch"] = None
import tvm
del sys.modules["torch"]
runpy.run_module("tvm.exec.popen_worker", run_name="__main__")
"""
"""The program of a worker.

Where torch is installed, `import tvm` imports it first, for a conflict of symbols on Windows: that takes 2 seconds and
200 MB in each worker, which has no use for it. A template of one's own may still import it.
"""


class WorkerPool(PopenPoolExecutor):  # type: ignore[misc]
    """Worker processes that start without torch and print nothing.

    There are at most `count`. A call that takes more than `timeout` seconds is killed with its process. A new process
    calls `initialize` first, and ends after `calls` calls if these are given.
    """

    def __init__(self, count: int, timeout: float, initialize: Callable[[], None], calls: int | None = None) -> None:
        super().__init__(count, timeout)
        self._new_worker = partial(_Worker, initialize, (), calls)

    def _worker_run(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Call a function in the process of this thread of the pool, which is started if there is none."""
        thread = threading.get_ident()
        with self._lock:
            if thread not in self._worker_map:
                self._worker_map[thread] = self._new_worker()
            worker = self._worker_map[thread]
        worker.send(fn, args, kwargs, self._timeout)
        return worker.recv()


class _Worker(PopenWorker):  # type: ignore[misc]
    """One of the processes, which starts when it is first sent a call."""

    _proc: subprocess.Popen[bytes] | None

    def _start(self) -> None:
        if self._proc is not None:
            return
        its_calls, our_calls = os.pipe()
        our_answers, its_answers = os.pipe()
        command = [sys.executable, "-c", MAIN, str(its_calls), str(its_answers)]
        quiet = subprocess.DEVNULL
        self._proc = subprocess.Popen(command, pass_fds=(its_calls, its_answers), stdout=quiet, stderr=quiet)
        os.close(its_calls)
        os.close(its_answers)
        self._reader, self._writer = os.fdopen(our_answers, "rb"), os.fdopen(our_calls, "wb")
