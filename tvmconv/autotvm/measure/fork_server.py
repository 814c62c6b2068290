"""A process that worker processes are forked from: they begin in a tenth of the second that importing TVM takes.

It has imported all that workers need, and nothing else has happened in it: it has no threads and has not begun to use a
device, which no fork survives. It ends with the process that began it.
"""

from __future__ import annotations

import atexit
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

from tvmconv.support import system
from tvmconv.targets.cuda import WITHOUT_CUDA

from .packages import importing

with importing():
    from tvm.exec import popen_worker

MAIN = """
import sys
sys.modules["torch"] = None
import tvm
del sys.modules["torch"]
import tvmconv.autotvm.measure.fork_server, tvmconv.autotvm.measure.worker
tvmconv.autotvm.measure.fork_server.serve(int(sys.argv[1]))
"""
"""The program of the server, with the number of its socket.

Where torch is installed, `import tvm` imports it first, for a conflict of symbols on Windows: that takes 2 seconds and
200 MB, and workers have no use for it. A template of one's own may still import it.
"""

PID_BYTES = 4

SECONDS_TO_DIE = 1.0
"""The seconds that a process has to die when it is killed: one that uses a GPU gives back its memory first."""


def readable(descriptor: int, seconds: float) -> bool:
    """Return whether a file descriptor can be read, or is at its end, within some seconds."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * seconds))


@dataclass(frozen=True)
class Fork:
    """A process that a server has forked."""

    pid: int
    handle: int
    """A file descriptor for this very process, even if its number is used again; it can be read when the process
    ends."""

    @property
    def alive(self) -> bool:
        """True unless the process has ended."""
        return not readable(self.handle, 0)

    def kill(self) -> None:
        """Kill the process and those that it has started, such as a compiler; call it once."""
        if self.alive:
            system.kill_group(self.pid)
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        readable(self.handle, SECONDS_TO_DIE)
        os.close(self.handle)


class ForkServer:
    """The server of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            command, quiet = [sys.executable, "-c", MAIN, str(theirs.fileno())], subprocess.DEVNULL
            self._process = subprocess.Popen(
                command, env=os.environ | WITHOUT_CUDA, pass_fds=(theirs.fileno(),), stdout=quiet, stderr=quiet
            )

    @property
    def alive(self) -> bool:
        """True unless the process has ended."""
        return self._process.poll() is None

    def fork(self, calls: int, answers: int) -> Fork:
        """Fork a process that is called as TVM's workers are, through file descriptors, in this process's folder."""
        folder, handles = os.open(os.curdir, os.O_PATH), list[int]()
        try:
            with self._lock, suppress(ConnectionError):
                socket.send_fds(self._socket, [b"."], (calls, answers, folder))
                pid, handles, *_ = socket.recv_fds(self._socket, PID_BYTES, 1)
        finally:
            os.close(folder)
        if not handles:
            self._process.wait()
            raise ChildProcessError("the process that workers are forked from has died")
        return Fork(int.from_bytes(pid, sys.byteorder), handles[0])

    def close(self) -> None:
        """Let the process end, and wait for that."""
        self._socket.close()
        self._process.wait()


_server: ForkServer | None = None
_beginning = threading.Lock()


def fork_server() -> ForkServer:
    """Return the server of this process, which begins when it is first asked for."""
    global _server
    with _beginning:
        if _server is None or not _server.alive:
            _server = ForkServer()
        return _server


def _in_a_fork_of_this_process() -> None:
    """Leave the server to the process that began it."""
    global _server, _beginning
    _server, _beginning = None, threading.Lock()


@atexit.register
def _close() -> None:
    if _server is not None:
        _server.close()


os.register_at_fork(after_in_child=_in_a_fork_of_this_process)


def serve(descriptor: int) -> None:
    """Fork workers until the process that began this one has ended; in each of them, answer calls."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for workers: they are gone when they end
    gc.freeze()
    with socket.socket(fileno=descriptor) as connection:
        while True:
            message, received, *_ = socket.recv_fds(connection, 1, 3)
            if not message:
                return
            pid = os.fork()
            if not pid:
                break
            handle = os.pidfd_open(pid)
            socket.send_fds(connection, [pid.to_bytes(PID_BYTES, sys.byteorder)], [handle])
            for each in (handle, *received):
                os.close(each)
    calls, answers, folder = received
    os.fchdir(folder)
    os.close(folder)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    system.begin_group()
    sys.argv = ["a worker", str(calls), str(answers)]
    with suppress(OSError):  # the process that calls has ended
        popen_worker.main()
