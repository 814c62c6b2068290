"""Running trials on the RPC servers of a tracker."""

from __future__ import annotations

import socket
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Any, NamedTuple

import msgspec
import tvm
from tvm import rpc
from tvm.rpc import base

from ..dispatch.task import Task
from ..dispatch.trial import MeasureInput, Status
from ..errors import InvalidArgumentError, NoDeviceError
from ..targets import DeviceFacts, cuda_arch
from ..version import __version__
from . import worker
from .processes import WorkerPool
from .protocol import BuildResult, Calls, RunResult, last_error
from .rpc import DESCRIBE, EVALUATE, IDLE, PAUSE, Job, ServerFacts

PATIENCE = 60.0
"""Seconds that a server may take for a trial, beside those that the trial may run, and that one is waited for."""

HOLD = 20.0
"""Seconds that a session with a server is kept though others wait for one: to begin another takes some."""

TRACKER_SECONDS = 5.0
"""How soon a tracker has to answer."""


class RPCRunner:
    """Checks and times kernels on the servers that a tracker has for a key, one on each at a time.

    They are servers of `tvmconv rpc server`, and have to be alike. Times are taken as by `LocalRunner`, with its
    `timeout`. There is one session with each server, which lasts from trial to trial, unless others wait for a server.
    A trial that loses its server in the middle, which need not be the kernel's fault, is run once more, on the next one
    that is free; a server that is started again is made use of again. `NoDeviceError` means that there is no server, or
    none left.

    MetaSchedule's runner of this name waits for ever where a server is lost, and cannot be ended then: here each
    session is held by a process of its own, which has a time-out.
    """

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        number: int = 10,
        repeat: int = 5,
        min_repeat_ms: int = 10,
        timeout: float = 10.0,
    ) -> None:
        worker.require_packages()
        self.key = key
        self.slots = count_servers(key, host, port)
        """How many trials run at once."""
        if not self.slots:
            raise NoDeviceError(
                f"the tracker at {host}:{port} has no server of key {key!r}: start `tvmconv rpc server`"
            )
        self._clients = [_Client(_Tracker(host, port, key), timeout) for _ in range(self.slots)]
        self._calls = Calls(number, repeat, min_repeat_ms)
        self._lock = Lock()
        self._facts: dict[str, list[ServerFacts]] = {}
        self._free: SimpleQueue[_Client] = SimpleQueue()
        self._busy = 0
        self._closed = False

    def device(self, task: Task) -> DeviceFacts:
        """The servers' device for a task."""
        server = self._servers(task)[0]
        if server.device is None:
            raise NoDeviceError(f"measuring {task} needs an NVIDIA GPU, and the servers of key {self.key!r} have none")
        if server.arch is not None and server.arch != cuda_arch(task.target):
            raise InvalidArgumentError("target", str(task.target), f"one of arch {server.arch}, as the servers have")
        return server.device

    def shares_cores(self, task: Task) -> bool:
        """Whether builds on this machine would disturb the timing."""
        here = socket.gethostname()
        return bool(task.target.kind.name == "llvm") and any(server.host == here for server in self._servers(task))

    def begin(self, task: Task) -> int:
        """Begins a session with each server, unless there is one; returns how many trials run at once."""
        return len(self._servers(task))

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        """Checks and times a trial's kernel on the next server that is free."""
        self._servers(trial.task)
        for _ in range(2):
            client = self._next()
            answer = client.evaluate(trial, build, self._calls)
            with self._lock:
                self._busy -= 1
            if isinstance(answer, _Answer) and not answer.others_wait:
                self._free.put(client)
            else:
                kind = trial.task.target.kind.name
                Thread(target=self._begin_again, args=(client, kind), daemon=True).start()
            if isinstance(answer, _Answer):
                self._require_alike(answer.server, trial.task.target.kind.name)
                return answer.result
        return RunResult((), Status.CRASH, f"two servers were lost with it: {answer}")

    def close(self) -> None:
        """Ends the sessions."""
        self._closed = True
        for client in self._clients:
            client.close(for_good=True)

    def _servers(self, task: Task) -> list[ServerFacts]:
        """What all servers say of themselves; the first time, a session with each begins."""
        kind = task.target.kind.name
        with self._lock:
            if kind not in self._facts:
                answers = [client.describe(kind) for client in self._clients]
                try:
                    self._facts[kind] = alike(self.key, [answer.result() for answer in answers])
                except (OSError, RuntimeError) as error:
                    reason = last_error(str(error)) or "it may be in use"
                    raise NoDeviceError(f"a server of key {self.key!r} does not answer: {reason}") from None
                except AttributeError:
                    raise NoDeviceError(f"a server of key {self.key!r} is not one of `tvmconv rpc server`") from None
                if len(self._facts) == 1:
                    for client in self._clients:
                        self._free.put(client)
            return self._facts[kind]

    def _next(self) -> _Client:
        """A client whose server is free, which is busy from now on; waits while others are busy, and a while longer."""
        while True:
            with suppress(Empty):
                client = self._free.get(timeout=PATIENCE)
                with self._lock:
                    self._busy += 1
                return client
            if not self._busy:
                raise NoDeviceError(f"no server of key {self.key!r} answers any more")

    def _require_alike(self, server: str, kind: str) -> None:
        """Refuses a server that came later and differs from the first."""
        alike(self.key, [msgspec.json.encode(self._facts[kind][0]).decode(), server])

    def _begin_again(self, client: _Client, kind: str) -> None:
        """Has a client get a server anew, the same or another, and be free then; meanwhile the other ones go on."""
        while not self._closed:
            # ValueError: the pool writes to a process that `close` has just ended.
            with suppress(OSError, RuntimeError, ValueError, AttributeError, InvalidArgumentError):
                client.close()
                self._require_alike(client.describe(kind).result(), kind)
                self._free.put(client)
                return
            time.sleep(PAUSE)


class _Tracker(NamedTuple):
    """Where a tracker listens, and for what key it is asked."""

    host: str
    port: int
    key: str


class _Answer(NamedTuple):
    """What comes of a trial, what its server says of itself, and whether others wait for it, which was held long."""

    result: RunResult
    server: str
    others_wait: bool


class _Client:
    """A process that has a session with a server; both begin when they are first needed, also after `close`."""

    def __init__(self, tracker: _Tracker, timeout: float) -> None:
        self._tracker = tracker
        self._timeout = timeout
        self._lock = Lock()
        self._closed = False
        self._pool: WorkerPool | None = None

    def describe(self, kind: str) -> Future[str]:
        """What the server says of itself, as JSON."""
        return self._submit(_describe, self._tracker, kind, self._timeout)

    def evaluate(self, trial: MeasureInput, build: BuildResult, calls: Calls) -> _Answer | str:
        """What comes of a trial on the server, or how the server was lost."""
        files = {Path(file).name: Path(file).read_bytes() for file in (build.library, *build.kernels)}
        task = trial.task
        job = Job(task.target.kind.name, task.problem.to_json(), build.workspace, files, calls, self._timeout)
        message = zlib.compress(msgspec.msgpack.encode(job), level=1)  # libraries are mostly zeros
        answer = self._submit(_evaluate, self._tracker, job.kind, self._timeout, message, HOLD)
        error = answer.exception()
        return answer.result() if error is None else last_error(str(error)) or type(error).__name__

    def close(self, for_good: bool = False) -> None:
        """Ends the process, and so the session."""
        with self._lock:
            self._closed |= for_good
            if self._pool is not None:
                self._pool.shutdown()
                self._pool = None

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        with self._lock:
            if self._closed:
                raise RuntimeError("closed")
            if self._pool is None:
                self._pool = WorkerPool(1, self._timeout + PATIENCE, worker.follow_parent)
            future: Future[Any] = self._pool.submit(function, *arguments)
            return future


def alike(key: str, answers: list[str]) -> list[ServerFacts]:
    """What servers have said of themselves; refuses those that differ from each other or are of other versions."""
    servers = [msgspec.json.decode(answer, type=ServerFacts) for answer in answers]
    expected = msgspec.structs.replace(servers[0], host="", tvmconv=__version__, tvm=tvm.__version__)
    if any(msgspec.structs.replace(server, host="") != expected for server in servers):
        raise InvalidArgumentError(
            "key",
            key,
            f"the key of servers with one kind of device, tvmconv {__version__} and TVM {tvm.__version__}; it has "
            + ", ".join(sorted(set(map(str, servers)))),
        )
    return servers


def count_servers(key: str, host: str, port: int) -> int:
    """How many servers of a key a tracker has; `NoDeviceError` where no tracker answers."""
    return sum(server["key"] == f"server:{key}" for server in _summary(host, port)["server_info"])


def _summary(host: str, port: int) -> dict[str, Any]:
    """What a tracker says of its servers and queues; `NoDeviceError` where none answers.

    TVM's own client waits a minute for one to appear, and for ever for an answer.
    """
    try:
        with socket.create_connection((host, port), TRACKER_SECONDS) as connection:
            # A request goes out in two parts, and the second would wait for the answer to the first: 40 ms.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(connection, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise OSError("what listens there is something else")
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            summary: dict[str, Any] = base.recvjson(connection)[1]
            return summary
    except OSError as error:
        raise NoDeviceError(f"no RPC tracker answers at {host}:{port} ({error}): start `tvmconv rpc tracker`") from None


class _Session:
    """A session with the next server that is free; what follows is what a client's process does."""

    def __init__(self, tracker: _Tracker, kind: str, timeout: float) -> None:
        self._tracker = tracker
        self._asked = self._used = time.monotonic()
        session = rpc.connect_tracker(tracker.host, tracker.port).request(tracker.key)
        self._evaluate = session.get_function(EVALUATE)
        self.server = str(session.get_function(DESCRIBE)(kind, timeout))

    @property
    def is_fresh(self) -> bool:
        """Whether the server will not end it soon for being idle."""
        return time.monotonic() < self._used + IDLE / 2

    def evaluate(self, job: bytes) -> RunResult:
        """What comes of a `Job`."""
        result = msgspec.json.decode(str(self._evaluate(job)), type=RunResult)
        self._used = time.monotonic()
        return result

    def others_wait(self, hold: float) -> bool:
        """Whether somebody waits for a server, asked every `hold` seconds; the tracker takes as long as some trials."""
        if time.monotonic() < self._asked + hold:
            return False
        self._asked = time.monotonic()
        with suppress(NoDeviceError):
            return bool(_summary(self._tracker.host, self._tracker.port)["queue_info"][self._tracker.key]["pending"])
        return False


_session = lru_cache(maxsize=1)(_Session)
"""The one session of this process."""


def _describe(tracker: _Tracker, kind: str, timeout: float) -> str:
    """Begins a session; what the server says of itself."""
    _session.cache_clear()  # which ends the one for another kind of target
    return _session(tracker, kind, timeout).server


def _evaluate(tracker: _Tracker, kind: str, timeout: float, job: bytes, hold: float) -> _Answer:
    """Has the server check and time a kernel."""
    if not _session(tracker, kind, timeout).is_fresh:
        _session.cache_clear()
    session = _session(tracker, kind, timeout)
    return _Answer(session.evaluate(job), session.server, session.others_wait(hold))
