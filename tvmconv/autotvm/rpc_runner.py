"""Running trials on the RPC servers of a tracker."""

from __future__ import annotations

import socket
import struct
import subprocess
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import tvm
from tvm.rpc import base
from tvm.s_tir.meta_schedule.runner import EvaluatorConfig, RPCConfig
from tvm.support.popen_pool import PopenPoolExecutor

from .. import __version__
from ..errors import InvalidArgumentError, NoDeviceError
from ..targets import DeviceFacts, cuda_arch
from . import worker
from .measure import BuildResult, MeasureInput, RunResult, Status, last_error
from .rpc import DESCRIBE, EVALUATE, ServerFacts
from .runner import failure
from .task import Task

PATIENCE = 60.0
"""Seconds that a trial waits for a server, beside those that it may run."""

TRACKER_SECONDS = 5.0
"""How soon a tracker has to answer."""

NO_SERVER = "[no server]"
"""Begins the message of the error for a server that cannot be had."""

SESSION_TIMEOUT = "RPCSessionTimeoutError"
"""TVM's name for the error of a session that its server has ended."""

REMOTE_ERROR = "Error caught from RPC call"
"""TVM's words for an error that a function of a server has raised: the server itself is well."""


class RPCRunner:
    """Checks and times kernels on the servers that a tracker has for a key, one on each at a time.

    They are servers of `tvmconv rpc server`, and have to be alike. Times are taken as by `LocalRunner`; `timeout` is
    that of a session. A trial that loses its server in the middle, which need not be the kernel's fault, is run once
    more. `NoDeviceError` means that there is no server, or none left.

    MetaSchedule's runner of this name waits for ever where a server is lost, and cannot be ended then: here TVM's pool
    of processes has a time-out.
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
        self._rpc = RPCConfig(host, port, key, session_timeout_sec=timeout)
        self._evaluator = EvaluatorConfig(number, repeat, min_repeat_ms)
        self._pool = PopenPoolExecutor(
            max_workers=self.slots,
            timeout=timeout + PATIENCE,
            initializer=worker.initialize,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        self._lock = Lock()
        self._facts: dict[str, list[ServerFacts]] = {}

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

    def run(self, trial: MeasureInput, build: BuildResult) -> RunResult:
        """Checks and times a trial's kernel on the next server that is free."""
        result = self._run(trial, build)
        if result is None or result.status is Status.CRASH:
            result = self._run(trial, build)
        if result is None:
            raise NoDeviceError(f"no server of key {self.key!r} answers any more")
        return result

    def close(self) -> None:
        """Ends the processes that talk to the servers, when what they do has ended."""
        self._pool.shutdown()

    def _run(self, trial: MeasureInput, build: BuildResult) -> RunResult | None:
        """What a server says of a kernel, a crash if it says no more; None if there is no server to be had."""
        kind, problem = trial.task.target.kind.name, trial.task.problem.to_json()
        try:
            costs = self._pool.submit(_evaluate, self._rpc, problem, kind, build, self._evaluator).result()
            return RunResult(tuple(costs))
        except (OSError, RuntimeError) as error:
            message = str(error)
            if SESSION_TIMEOUT in message:
                return RunResult((), Status.RUN_TIMEOUT, f"killed after {self._rpc.session_timeout_sec:g} seconds")
            if REMOTE_ERROR in message:
                return failure(message)
            if NO_SERVER in message or isinstance(error, TimeoutError):
                return None
            return RunResult((), Status.CRASH, f"the server's process died: {last_error(message)}")

    def _servers(self, task: Task) -> list[ServerFacts]:
        """What all servers say of themselves."""
        kind = task.target.kind.name
        with self._lock:
            if kind not in self._facts:
                try:
                    answers = self._pool.submit(_describe, self._rpc, kind, self.slots).result()
                except (OSError, RuntimeError) as error:
                    reason = last_error(str(error)) or "it may be in use"
                    raise NoDeviceError(f"a server of key {self.key!r} does not answer: {reason}") from None
                except AttributeError:
                    raise NoDeviceError(f"a server of key {self.key!r} is not one of `tvmconv rpc server`") from None
                self._facts[kind] = alike(self.key, answers)
            return self._facts[kind]


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
    """How many servers of a key a tracker has; `NoDeviceError` where no tracker answers.

    TVM's own client waits a minute for one to appear, and for ever for an answer.
    """
    try:
        with socket.create_connection((host, port), TRACKER_SECONDS) as connection:
            connection.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            (magic,) = struct.unpack("<i", base.recvall(connection, 4))
            if magic != base.RPC_TRACKER_MAGIC:
                raise OSError("what listens there is something else")
            base.sendjson(connection, [base.TrackerCode.SUMMARY])
            _, summary = base.recvjson(connection)
    except OSError as error:
        raise NoDeviceError(f"no RPC tracker answers at {host}:{port} ({error}): start `tvmconv rpc tracker`") from None
    return sum(server["key"] == f"server:{key}" for server in summary["server_info"])


def _connect(rpc: Any) -> Any:
    """A session with the next server that is free."""
    try:
        return rpc.connect_server()
    except (OSError, RuntimeError, ValueError) as error:
        raise RuntimeError(f"{NO_SERVER} {error}") from None


def _evaluate(rpc: Any, problem: str, kind: str, build: BuildResult, config: Any) -> list[float]:
    """Has a server check and time a kernel, in a session of its own: seconds of a call."""
    session, name = _connect(rpc), Path(build.library).name
    session.upload(build.library, name)
    evaluate, workspace = session.get_function(EVALUATE), msgspec.json.encode(build.workspace).decode()
    numbers = config.number, config.repeat, config.min_repeat_ms
    costs = evaluate(problem, workspace, session.load_module(name), kind, *numbers)
    return msgspec.json.decode(str(costs), type=list[float])


def _describe(rpc: Any, kind: str, servers: int) -> list[str]:
    """What each server says of itself, asked while the others are held."""
    sessions, answers = [], []
    for _ in range(servers):
        sessions.append(_connect(rpc))
        answers.append(str(sessions[-1].get_function(DESCRIBE)(kind)))
    return answers
