"""Devices of other machines: TVM's RPC tracker and servers, in processes that are started again when they die.

A server forks a process for each session, in which a client has trial after trial measured. Kernels run in another
process, which the session starts and keeps, with its use of the GPU, until one fails: see `runner.DeviceProcess`. Where
the session's process dies, TVM's listening thread dies too, and clients would wait for ever; here the server's process
ends with the thread, and is forked again from a process that has imported everything.

Importing TVM begins to use CUDA, which no fork survives. So `tvmconv rpc server` has TVM load no runtime of a device,
and not ask torch for one; the process that runs kernels loads CUDA's for itself.

TVM's RPC has no authentication: whoever reaches a port can run code on the machine.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from ipaddress import ip_address
from multiprocessing.connection import wait
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import tvm
from tvm.rpc.server import PopenRPCServerState

from tvmconv.lowering.workspace import Workspace
from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError, TvmconvError
from tvmconv.support import system
from tvmconv.support.process import Process
from tvmconv.support.version import __version__
from tvmconv.targets import DeviceFacts, backend_named

from ..measure import worker
from ..measure.protocol import Calls
from ..measure.runner import DeviceProcess

EVALUATE = "tvmconv.evaluate"
"""The name of the server's function that checks and times a kernel."""

DESCRIBE = "tvmconv.device"
"""The name of the server's function that describes the server."""

PAUSE = 0.5
"""The seconds before a process is started again."""

IDLE = 30.0
"""The seconds without a trial after which a session ends, so that others, too, have the server."""

Service = Callable[[], Any]
"""A function that begins to listen in a thread and returns TVM's state of a tracker or a server.

The state has `port` and `thread`.
"""


class Job(msgspec.Struct, frozen=True):
    """A trial as a server gets it, in one message, which zlib compresses."""

    kind: str
    """The kind of the target."""
    problem: str
    workspace: Workspace
    files: dict[str, bytes]
    """The contents of the library, which comes first, and of its machine code, by the names of the files."""
    calls: Calls
    timeout: float


class ServerFacts(msgspec.Struct, frozen=True):
    """The description of a server; servers of one key have equal ones, except for the host."""

    host: str
    device: DeviceFacts | None
    """The device; None where the kind of device that was asked for is missing."""
    arch: str | None
    """The device's architecture, such as "sm_90" or "aarch64"."""
    tvmconv: str
    tvm: str

    def __str__(self) -> str:
        return f"{self.device or 'no device'} with tvmconv {self.tvmconv} and TVM {self.tvm} on {self.host}"


def tracker(host: str, port: int) -> Service:
    """Return the service of TVM's tracker, which keeps the list of servers and hands them out."""
    _check_host(host)
    try:
        from tvm.rpc.tracker import PopenTrackerServerState
    except ImportError:
        raise MissingPackageError("tornado", "tune", "an RPC tracker") from None
    return lambda: PopenTrackerServerState(host, port, port + 1, silent=True)


def server(tracker: tuple[str, int], key: str, host: str, port: int, port_end: int, device: int | None) -> Service:
    """Return the service of TVM's server, with the functions that `RPCRunner` calls.

    It listens on the first free port from `port` to before `port_end`. `device` is the number of the GPU, of several in
    this machine.
    """
    _check_host(host)
    if not key or set(key) & set(": \t\n"):
        raise InvalidArgumentError("key", key, "a name without spaces and colons")

    def listen() -> Any:
        if device is not None:
            os.environ["CUDA_VISIBLE_DEVICES"] = str(device)
        tvm.register_global_func(EVALUATE, _evaluate, override=True)
        tvm.register_global_func(DESCRIBE, _describe, override=True)
        logging.getLogger("RPCServer").setLevel(logging.WARNING)
        return PopenRPCServerState(host, port, port_end, tracker_addr=tracker, key=key)

    return listen


class Supervisor:
    """Runs services, each in a separate process, from `with` to the end of the block; SIGTERM ends the block too."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self._services = services
        self._children: dict[str, _Child] = {}

    @property
    def ports(self) -> dict[str, int]:
        """The port that each service listens on."""
        return {name: child.port for name, child in self._children.items()}

    def __enter__(self) -> Supervisor:
        signal.signal(signal.SIGTERM, _terminated)
        with ExitStack() as undo:
            undo.callback(self.__exit__)
            for name, service in self._services.items():
                self._children[name] = _Child(service)
            undo.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for child in self._children.values():
            child.end()

    def watch(self, died: Callable[[str], None]) -> None:
        """Start again each service that dies, and tell its name, until the process is interrupted."""
        while True:
            wait([child.process.sentinel for child in self._children.values()])
            time.sleep(PAUSE)
            for name, child in self._children.items():
                if not child.process.alive:
                    child.end()
                    died(name)
                    self._children[name] = _Child(self._services[name])


class _Child:
    """A process in which a service listens, and a folder for temporary files that its sessions leave."""

    def __init__(self, service: Service) -> None:
        self._folder = tempfile.mkdtemp(prefix="tvmconv-rpc-")
        with ExitStack() as undo:
            undo.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self.process = Process(_serve, service, self._folder, context="fork")
            undo.callback(self.process.kill)
            try:
                answer = self.process.answer()
            except ChildProcessError:
                raise TvmconvError("the process died before it could listen") from None
            if isinstance(answer, str):
                raise TvmconvError(f"cannot listen there: {answer}")
            self.port: int = answer
            undo.pop_all()

    def end(self) -> None:
        """Kill the process, and its sessions with it."""
        self.process.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def _serve(service: Service, folder: str) -> Iterator[int | str]:
    """Run a service in a child process until TVM's thread ends, as it does with a session that died.

    Yields the port that it listens on, or the reason why it cannot.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # by which TVM ends a session that takes too long
    os.register_at_fork(after_in_child=_initialize_session)
    multiprocessing.set_start_method("fork", force=True)  # for sessions: newer Pythons have another default
    threading.excepthook = lambda failure: print(failure.exc_value, file=sys.stderr, flush=True)
    tempfile.tempdir = folder
    try:
        listening = service()
    except (OSError, ValueError) as error:
        yield str(error)
        return
    yield listening.port
    listening.thread.join()


def _initialize_session() -> None:
    system.follow_parent()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # TVM prints the stack of what crashes


@cache
def _process(kind: str, timeout: float) -> DeviceProcess:
    """Return the session's process for kernels of a kind of target."""
    return DeviceProcess(f"{backend_named(kind).device_type}:0", timeout)


@contextmanager
def _used() -> Iterator[None]:
    """Keep the session alive during the block, and end it `IDLE` seconds after the last one."""
    global _end
    _end.cancel()
    try:
        yield
    finally:
        _end = threading.Timer(IDLE, os._exit, (0,))
        _end.daemon = True
        _end.start()


_end = threading.Timer(IDLE, os._exit, (0,))


def _evaluate(encoded: bytes) -> str:
    """Check and time the kernel of a `Job`; return its `RunResult` as JSON."""
    job = msgspec.msgpack.decode(zlib.decompress(encoded), type=Job)
    with _used(), tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder, Path(name).name) for name in job.files]
        for path, content in zip(paths, job.files.values(), strict=True):
            path.write_bytes(content)
        result = _process(job.kind, job.timeout).run(job.problem, job.workspace, str(paths[0]), job.calls)
        return msgspec.json.encode(result).decode()


def _describe(kind: str, timeout: float) -> str:
    """Return this server's `ServerFacts` for targets of a kind, as JSON, after a test that its device answers."""
    with _used():
        process = _process(kind, timeout)
        device, arch = process.start().submit(worker.describe, kind).result()
        if device is not None:
            process.require_device()
        return msgspec.json.encode(
            ServerFacts(socket.gethostname(), device, arch, __version__, tvm.__version__)
        ).decode()


def _check_host(host: str) -> None:
    try:
        address = socket.getaddrinfo(host, None)[0][4][0]
    except socket.gaierror as error:
        raise InvalidArgumentError("host", host, f"an address of this machine ({error})") from None
    if not ip_address(address).is_loopback:
        warnings.warn(
            f"TVM's RPC has no authentication: whoever reaches {host} on its port can run code on this machine",
            stacklevel=3,
        )


def _terminated(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)
