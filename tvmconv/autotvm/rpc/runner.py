"""A runner of trials on the RPC servers of a tracker."""

from __future__ import annotations

import logging
import socket
import struct
import time
import zlib
from collections import Counter
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

from tvmconv.dispatch.task import Task
from tvmconv.dispatch.trial import MeasureInput, Status
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.problem.parameters import is_integer, require_positive
from tvmconv.support import system
from tvmconv.support.version import __version__
from tvmconv.targets import DeviceFacts, arch_of, backend_of

from ..gone import refuse_arguments
from ..measure.packages import require_packages
from ..measure.processes import WorkerPool
from ..measure.protocol import BuildResult, Calls, RunResult, last_error, require_seconds
from ..measure.runner import require_for
from . import DESCRIBE, EVALUATE, IDLE, PAUSE, Job, ServerFacts

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""The seconds to wait for a server, and for a trial beyond the time that the trial itself may run."""

HOLD = 20.0
"""The seconds that a session with a server is kept though others wait for one, as beginning another takes time."""

REPEATS = 3
"""The number of repetitions of one error after which a client reports it; a server's restart causes fewer."""

TRACKER_SECONDS = 5.0
"""The seconds within which a tracker has to answer."""


class RPCRunner:
    """Checks and times kernels on the servers that a tracker has for a key, one on each at a time.

    They are servers of `tvmconv rpc server`, and have to be alike. Times are taken as by `LocalRunner`, with its
    arguments, and on at most `n_parallel` servers, by default on all. Of those who wait for a server the tracker serves
    the highest `priority` first. The arguments are AutoTVM's, in its order.

    There is one session with each server, which lasts from trial to trial, unless others wait for a server.
    A trial that loses its server in the middle, which need not be the kernel's fault, is run once more, on the next one
    that is free; a server that is started again is made use of again. `NoDeviceError` means that there is no server, or
    none left.

    MetaSchedule's runner of this name waits for ever where a server is lost, and cannot be ended then: here each
    session is held by a separate process, which has a time-out.
    """

    def __init__(
        self,
        key: str,
        host: str,
        port: int,
        priority: int = 1,
        timeout: float = 10.0,
        n_parallel: int | None = None,
        number: int = 10,
        repeat: int = 5,
        min_repeat_ms: int = 10,
        cooldown_interval: float = 0.0,
        enable_cpu_cache_flush: bool = False,
        **others: object,
    ) -> None:
        refuse_arguments("RPCRunner", others)
        if not is_integer(priority) or priority < 0:
            raise InvalidArgumentError("priority", priority, "an integer of 0 or more")
        require_seconds("timeout", timeout)
        require_seconds("cooldown_interval", cooldown_interval, may_be_zero=True)
        if n_parallel is not None:
            require_positive("n_parallel", n_parallel)
        self._calls = Calls.checked(number, repeat, min_repeat_ms, enable_cpu_cache_flush)
        require_packages()
        self.key = key
        self.cooldown_interval = cooldown_interval
        servers = count_servers(key, host, port)
        self.slots = servers if n_parallel is None else min(servers, n_parallel)
        """The number of trials that run at once."""
        if not self.slots:
            raise NoDeviceError(
                f"the tracker at {host}:{port} has no server of key {key!r}: start `tvmconv rpc server`"
            )
        self._clients = [_Client(_Tracker(host, port, key, priority), timeout) for _ in range(self.slots)]
        self._lock = Lock()
        self._facts: dict[str, list[ServerFacts]] = {}
        self._free: SimpleQueue[_Client] = SimpleQueue()
        self._busy = 0
        self._closed = False

    def device(self, task: Task) -> DeviceFacts:
        """Return the servers' device for a task."""
        server = self._servers(task)[0]
        if server.device is None:
            missing = backend_of(task.target).missing
            raise NoDeviceError(f"measuring {task} needs {missing}, and the servers of key {self.key!r} have none")
        if server.arch != arch_of(task.target):
            raise InvalidArgumentError("target", str(task.target), f"one of arch {server.arch}, as the servers have")
        require_for(task, server.device)
        return server.device

    def shares_cores(self, task: Task) -> bool:
        """Return whether builds on this machine would disturb the timing."""
        here = socket.gethostname()
        return backend_of(task.target).uses_host_cores and any(server.host == here for server in self._servers(task))

    def begin(self, task: Task) -> int:
        """Begin a session with each server, unless there is one; return the number of trials that run at once."""
        return len(self._servers(task))

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        """Check and time a trial's kernel on the next server that is free."""
        self._servers(trial.task)
        for _ in range(2):
            client = self._next()
            answer = client.evaluate(trial, build, self._calls)
            time.sleep(self.cooldown_interval)
            with self._lock:
                self._busy -= 1
            if isinstance(answer, _Answer) and not answer.others_wait:
                self._free.put(client)
            else:
                kind = trial.task.target.kind.name
                Thread(target=self._begin_again, args=(client, kind), daemon=True).start()
            if isinstance(answer, _Answer):
                self._require_equal_facts(answer.server, trial.task.target.kind.name)
                return answer.result
        return RunResult((), Status.CRASH, f"two servers were lost with it: {answer}")

    def close(self) -> None:
        """End the sessions."""
        self._closed = True
        for client in self._clients:
            client.close(for_good=True)

    def _servers(self, task: Task) -> list[ServerFacts]:
        """Return the descriptions of all servers; the first time, begin a session with each."""
        kind = task.target.kind.name
        with self._lock:
            if kind not in self._facts:
                answers = [client.describe(kind) for client in self._clients]
                try:
                    self._facts[kind] = equal_facts(self.key, [answer.result() for answer in answers])
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
        """Return a client whose server is free, and mark it as busy; wait while others are busy, and a while longer."""
        while True:
            with suppress(Empty):
                client = self._free.get(timeout=PATIENCE)
                with self._lock:
                    self._busy += 1
                return client
            if not self._busy:
                raise NoDeviceError(f"no server of key {self.key!r} answers any more")

    def _require_equal_facts(self, server: str, kind: str) -> None:
        """Refuse a server that was added later and differs from the first."""
        equal_facts(self.key, [msgspec.json.encode(self._facts[kind][0]).decode(), server])

    def _begin_again(self, client: _Client, kind: str) -> None:
        """Let a client get a server again, the same or another, and then be free; meanwhile the other clients go on."""
        errors = Counter[str]()
        while not self._closed:
            try:
                client.close()
                self._require_equal_facts(client.describe(kind).result(), kind)
                self._free.put(client)
                return
            # ValueError: the pool writes to a process that `close` has just ended.
            except (OSError, RuntimeError, ValueError, AttributeError, InvalidArgumentError) as error:
                reason = f"{type(error).__name__}: {last_error(str(error))}"
                errors[reason] += 1
                if errors[reason] == REPEATS and not self._closed:
                    logger.warning(
                        "a server of key %r has failed %d times, and is tried again: %s", self.key, REPEATS, reason
                    )
            time.sleep(PAUSE)


class _Tracker(NamedTuple):
    """The address of a tracker, and the key and the priority with which servers are asked for."""

    host: str
    port: int
    key: str
    priority: int


class _Answer(NamedTuple):
    """The result of a trial, the description of its server, and whether others have waited long for a server."""

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
        """Return the server's `ServerFacts` as JSON."""
        return self._submit(_describe, self._tracker, kind, self._timeout)

    def evaluate(self, trial: MeasureInput, build: BuildResult, calls: Calls) -> _Answer | str:
        """Return the answer for a trial on the server, or the reason why the server was lost."""
        files = {Path(file).name: Path(file).read_bytes() for file in (build.library, *build.kernels)}
        task = trial.task
        job = Job(task.target.kind.name, task.problem.to_json(), build.workspace, files, calls, self._timeout)
        message = zlib.compress(msgspec.msgpack.encode(job), level=1)  # libraries are mostly zeros
        answer = self._submit(_evaluate, self._tracker, job.kind, self._timeout, message, HOLD)
        error = answer.exception()
        return answer.result() if error is None else last_error(str(error)) or type(error).__name__

    def close(self, for_good: bool = False) -> None:
        """End the process, and so the session."""
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
                self._pool = WorkerPool(1, self._timeout + PATIENCE, system.follow_parent)
            future: Future[Any] = self._pool.submit(function, *arguments)
            return future


def equal_facts(key: str, answers: list[str]) -> list[ServerFacts]:
    """Return servers' descriptions; refuse servers that differ from each other or have other versions."""
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
    """Return the number of a tracker's servers for a key; raise `NoDeviceError` where no tracker answers."""
    return sum(server["key"] == f"server:{key}" for server in _summary(host, port)["server_info"])


def _summary(host: str, port: int) -> dict[str, Any]:
    """Return a tracker's list of servers and queues; raise `NoDeviceError` where none answers.

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
    """A session with the next server that is free; it lives in a client's process, like all code below."""

    def __init__(self, tracker: _Tracker, kind: str, timeout: float) -> None:
        self._tracker = tracker
        self._last_request = self._used = time.monotonic()
        session = rpc.connect_tracker(tracker.host, tracker.port).request(tracker.key, tracker.priority)
        self._evaluate = session.get_function(EVALUATE)
        self.server = str(session.get_function(DESCRIBE)(kind, timeout))

    @property
    def is_fresh(self) -> bool:
        """True while the server will not soon end it for being idle."""
        return time.monotonic() < self._used + IDLE / 2

    def evaluate(self, job: bytes) -> RunResult:
        """Return the result of a `Job`."""
        result = msgspec.json.decode(str(self._evaluate(job)), type=RunResult)
        self._used = time.monotonic()
        return result

    def others_wait(self, hold: float) -> bool:
        """Return whether somebody waits for a server.

        The tracker, whose answer takes as long as some trials, is asked every `hold` seconds.
        """
        if time.monotonic() < self._last_request + hold:
            return False
        self._last_request = time.monotonic()
        with suppress(NoDeviceError):
            return bool(_summary(self._tracker.host, self._tracker.port)["queue_info"][self._tracker.key]["pending"])
        return False


_session = lru_cache(maxsize=1)(_Session)
"""The one session of this process, made at the first call."""


def _describe(tracker: _Tracker, kind: str, timeout: float) -> str:
    """Begin a session and return its server's description."""
    _session.cache_clear()  # which ends the one for another kind of target
    return _session(tracker, kind, timeout).server


def _evaluate(tracker: _Tracker, kind: str, timeout: float, job: bytes, hold: float) -> _Answer:
    """Let the server check and time a kernel."""
    if not _session(tracker, kind, timeout).is_fresh:
        _session.cache_clear()
    session = _session(tracker, kind, timeout)
    return _Answer(session.evaluate(job), session.server, session.others_wait(hold))
