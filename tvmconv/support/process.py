"""A function in a child process: its caller sees its answers, its time and its death, and ends it with its children."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from inspect import isgenerator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any

from . import system


class Process:
    """A process that calls a function and sends back what it returns or yields; the end of a `with` block kills it.

    It leaves Ctrl-C to the process that began it. `kill` also ends what it has started in turn, unless that has left
    its process group.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any, context: BaseContext | str = "spawn") -> None:
        """Begin; `context` is one of `multiprocessing`, or its name, and says how."""
        chosen: Any = multiprocessing.get_context(context) if isinstance(context, str) else context
        self._answers, theirs = chosen.Pipe(duplex=False)
        parent = None if chosen.get_start_method() == "forkserver" else os.getpid()  # a server begins the process there
        self._process = chosen.Process(target=_call, args=(function, arguments, theirs, parent))
        self._is_killed = False
        self._process.start()
        theirs.close()
        self.sentinel: int = self._process.sentinel
        """The object with which `multiprocessing.connection.wait` waits for the process's end."""

    def __enter__(self) -> Process:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    @property
    def alive(self) -> bool:
        """True unless the process has ended."""
        return not wait([self.sentinel], 0)

    def answer(self, seconds: float | None = None) -> Any:
        """Return what the function returns, or yields next.

        Raises `TimeoutError` where that takes more than `seconds`, and `ChildProcessError` where the process ends
        without an answer; the process is killed then.
        """
        ready = wait([self._answers, self.sentinel], seconds)
        if self._answers.poll():
            try:
                return self._answers.recv()
            except EOFError:  # closed by its end
                pass
        died = bool(ready) or not self.alive
        self.kill()
        if died:
            raise ChildProcessError(f"the process died with exit code {self._process.exitcode}")
        raise TimeoutError(f"the process took more than {seconds:g} s")

    def join(self, seconds: float | None = None) -> bool:
        """Wait for the process's end, at most for some seconds; return whether it has ended."""
        return bool(wait([self.sentinel], seconds))

    def kill(self) -> None:
        """Kill the process, if it has not ended, and all in its process group, and wait for its end."""
        if not self._is_killed:
            self._is_killed = True
            system.kill_group(self._process.pid)
            self._process.kill()
            self._process.join()
            self._answers.close()


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], answers: Connection, parent: int | None) -> None:
    """Call a function in a new process and send what it returns or yields; `parent` is the process that began it."""
    system.begin_group()
    system.follow_parent()
    if parent not in (None, os.getppid()):  # which ended before this process could follow it
        os._exit(1)
    result = function(*arguments)
    for answer in result if isgenerator(result) else (result,):
        answers.send(answer)
