"""Trials on RPC servers: two on this machine's CPU, one of which is killed in mid-run."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import msgspec
import psutil
import pytest
import tvm
from click.testing import CliRunner
from tvm.rpc.server import PopenRPCServerState

from tests.autotvm.faulty_kernels import TASK, WORKLOAD, assert_told_apart, by_fault, library
from tests.shared import templates_of_tests  # noqa: F401 (it defines templates)
from tests.shared.command_line import tvmconv_json
from tvmconv import __version__
from tvmconv.autotvm import rpc, task
from tvmconv.autotvm.measure import MeasureInput, Status, measure_option
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.rpc import runner as rpc_runner
from tvmconv.autotvm.rpc.runner import RPCRunner, count_servers, equal_facts
from tvmconv.autotvm.templates import create_task
from tvmconv.cli import main
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.targets import DeviceFacts, device_facts, has_gpu
from tvmconv.targets.devices import host_arch

pytestmark = pytest.mark.usefixtures("without_torch")

HOST, KEY = "127.0.0.1", "here"
FORK = multiprocessing.get_context("fork")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with suppress(NoDeviceError):
            if condition():
                return
        time.sleep(0.05)
    raise TimeoutError


@pytest.fixture(scope="module")
def tracker() -> Iterator[int]:
    """Yield the port of a tracker."""
    port = free_port()
    process = FORK.Process(target=main, args=(["rpc", "tracker", "--port", str(port)],))
    process.start()
    try:
        wait_for(lambda: count_servers(KEY, HOST, port) == 0)
        yield port
        (child,) = psutil.Process(process.pid).children()
        os.kill(process.pid, signal.SIGINT)
        process.join(10)
        assert process.exitcode == 130
        assert psutil.wait_procs([child], timeout=5)[1] == []
    finally:
        process.kill()


@contextmanager
def serving(tracker: int, key: str, devices: Sequence[int], log: Path) -> Iterator[psutil.Process]:
    """Yield the supervisor of a server for each device; its stderr goes to `log`."""
    first = free_port()
    options = f"--tracker {HOST}:{tracker} --key {key} --port {first} --port-end {first + 50}"
    options += "".join(f" --device {device}" for device in devices)
    command = [sys.executable, "-c", "from tvmconv.cli import main; main()", "rpc", "server", *options.split()]
    with log.open("w") as stderr:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"server of device 0: {HOST}:"), log.read_text()
        wait_for(lambda: count_servers(key, HOST, tracker) == len(devices))
        supervisor = psutil.Process(process.pid)
        yield supervisor
        children = supervisor.children(recursive=True)
        process.terminate()
        assert process.wait(10) == 128 + signal.SIGTERM
        assert psutil.wait_procs(children, timeout=5)[1] == []
    finally:
        process.kill()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rpc") / "log"


@pytest.fixture(scope="module")
def supervisor(tracker: int, log: Path) -> Iterator[psutil.Process]:
    """Yield the supervisor of two servers."""
    with serving(tracker, KEY, (0, 1), log) as process:
        yield process


@pytest.fixture(scope="module")
def runner(tracker: int, supervisor: psutil.Process) -> Iterator[RPCRunner]:
    wait_for(lambda: count_servers(KEY, HOST, tracker) == 2)  # one may just have ended a session of another client
    runner = RPCRunner(KEY, HOST, tracker, number=2, repeat=3, min_repeat_ms=0, timeout=2)
    yield runner
    runner.close()


@pytest.mark.usefixtures("one_round")
def test_the_command_tunes_through_a_tracker(tracker: int, supervisor: psutil.Process, tmp_path: Path) -> None:
    """It comes before the tests whose runner keeps its sessions: a server lets an idle one go after half a minute."""
    where = ("--rpc-tracker", f"{HOST}:{tracker}", "--rpc-key", KEY, "--parallel", 1)
    measuring = ("--number", 1, "--repeat", 1, "--min-repeat-ms", 0)
    tuning = (
        "tune",
        "--workload",
        WORKLOAD.to_json(),
        "-o",
        tmp_path / "log.jsonl",
        "--trials",
        3,
        "--tuner",
        "random",
    )
    report = tvmconv_json(*tuning, *where, *measuring)
    (tuned,) = report["tasks"]
    assert (tuned["trials"], tuned["failures"]) == (3, {})
    assert report["device"] == msgspec.to_builtins(device_facts("llvm"))


def test_servers_are_known(runner: RPCRunner) -> None:
    assert runner.slots == 2
    assert runner.device(TASK) == device_facts("llvm")
    assert runner.shares_cores(TASK)


def test_servers_with_another_kind_of_cpu_are_refused(runner: RPCRunner) -> None:
    other = "aarch64" if host_arch() == "x86_64" else "x86_64"
    trials = task.create(WORKLOAD, {"kind": "llvm", "mtriple": f"{other}-linux-gnu"})
    with pytest.raises(InvalidArgumentError, match=f"one of arch {host_arch()}, as the servers have"):
        runner.device(trials)


def kill_a_busy_server(supervisor: psutil.Process) -> None:
    """Kill a server that is in a session, for which it forks a process."""
    while True:
        for server in supervisor.children():
            if server.children():
                server.kill()
                return
        time.sleep(0.001)


def test_nothing_is_lost_with_a_server(
    tracker: int, supervisor: psutil.Process, builder: LocalBuilder, runner: RPCRunner, log: Path
) -> None:
    trials = [MeasureInput(TASK.target, TASK, config) for config in TASK.space.configs[:12]]
    before = set(supervisor.children())
    killer = Thread(target=kill_a_busy_server, args=(supervisor,), daemon=True)
    measured = {}
    for trial, result in measure_option(builder, runner).measure(trials, lambda trial: None):
        measured[trial] = result
        if len(measured) == 4:
            killer.start()
    killer.join(10)
    assert not killer.is_alive()
    assert set(measured) == set(trials)
    for result in measured.values():
        assert (result.status, result.reason, len(result.costs)) == (Status.OK, None, 3)
        assert 0 < result.cost < 0.01
    wait_for(lambda: count_servers(KEY, HOST, tracker) == 2)
    now = set(supervisor.children())
    assert (len(now), len(now & before)) == (2, 1)
    assert "died, and is started again" in log.read_text()


def test_a_kernel_that_crashes_ends_no_server(
    supervisor: psutil.Process, builder: LocalBuilder, runner: RPCRunner, tmp_path: Path
) -> None:
    """The crash ends only the process that ran the kernel."""
    servers = set(supervisor.children())
    for _ in range(2):
        assert (
            runner.run(MeasureInput(TASK.target, TASK, TASK.space.default), library(tmp_path, "abort();")).status
            is Status.CRASH
        )
        sound = builder.build(MeasureInput(TASK.target, TASK, TASK.space.default)).result()
        assert runner.run(MeasureInput(TASK.target, TASK, TASK.space.default), sound).status is Status.OK
    assert set(supervisor.children()) == servers


def test_a_server_that_others_wait_for_is_let_go(
    tracker: int, builder: LocalBuilder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runners share the only server."""
    monkeypatch.setattr(rpc_runner, "HOLD", 0.0)
    trial = MeasureInput(TASK.target, TASK, TASK.space.default)
    with serving(tracker, "one", (0,), tmp_path / "log"):
        first, second = (RPCRunner("one", HOST, tracker, number=1, repeat=1, min_repeat_ms=0) for _ in range(2))
        assert first.begin(TASK) == 1
        waiting = Thread(target=second.begin, args=(TASK,), daemon=True)
        waiting.start()
        sound = builder.build(trial).result()
        wait_for(lambda: rpc_runner._summary(HOST, tracker)["queue_info"]["one"]["pending"] == 1)
        assert first.run(trial, sound).status is Status.OK
        waiting.join(20)  # less than a server waits before it ends a session that is idle
        assert not waiting.is_alive()
        monkeypatch.setattr(rpc_runner, "HOLD", 20.0)
        assert second.run(trial, sound).status is Status.OK
        second.close()
        assert first.run(trial, sound).status is Status.OK
        first.close()


@by_fault
def test_failures_are_told_apart(tmp_path: Path, runner: RPCRunner, body: str, status: Status) -> None:
    assert_told_apart(runner, library(tmp_path, body), status)


@pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
def test_a_gpu_is_measured(tracker: int, tmp_path: Path) -> None:
    on_gpu = task.create(WORKLOAD, "cuda")
    builder = LocalBuilder(n_parallel=2)
    with serving(tracker, "gpu", (0,), tmp_path / "log"):
        runner = RPCRunner("gpu", HOST, tracker)
        assert runner.device(on_gpu) == device_facts("cuda")
        trials = [MeasureInput(on_gpu.target, on_gpu, config) for config in on_gpu.space.configs[:4]]
        measured = dict(measure_option(builder, runner).measure(trials, lambda trial: None))
        runner.close()
    builder.close()
    assert {result.reason for result in measured.values()} == {None}
    assert all(0 < result.cost < 1e-3 for result in measured.values())


def test_an_error_that_repeats_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """A server that fails for good is no reason to wait in silence; one that is started again answers in the end."""
    monkeypatch.setattr(rpc_runner, "PAUSE", 0.0)
    errors = [ConnectionError("refused"), *[RuntimeError("no room")] * 5]

    class Client:
        def close(self) -> None:
            pass

        def describe(self, kind: str) -> Future[str]:
            future: Future[str] = Future()
            if errors:
                future.set_exception(errors.pop(0))
            else:
                future.set_result("facts")
            return future

    runner = object.__new__(RPCRunner)
    runner.key, runner._closed, runner._free = KEY, False, SimpleQueue()
    monkeypatch.setattr(runner, "_require_equal_facts", lambda server, kind: None)
    runner._begin_again(client := Client(), "llvm")  # type: ignore[arg-type]
    assert runner._free.get_nowait() is client
    (record,) = caplog.records
    assert "RuntimeError: no room" in record.getMessage()


def test_a_server_of_tvm_alone_is_refused(tracker: int) -> None:
    def serve() -> None:
        port = free_port()
        PopenRPCServerState(HOST, port, port + 50, tracker_addr=(HOST, tracker), key="plain", silent=True)

    server = FORK.Process(target=serve)
    server.start()
    wait_for(lambda: count_servers("plain", HOST, tracker) == 1)
    runner = RPCRunner("plain", HOST, tracker)
    with pytest.raises(NoDeviceError, match="is not one of `tvmconv rpc server`"):
        runner.device(TASK)
    runner.close()
    server.kill()


def test_servers_that_differ_are_refused() -> None:
    def answer(host: str, name: str, version: str = __version__) -> str:
        facts = rpc.ServerFacts(host, DeviceFacts(name), "sm_90", version, tvm.__version__)
        return msgspec.json.encode(facts).decode()

    assert len(equal_facts(KEY, [answer("a", "H100"), answer("b", "H100")])) == 2
    with pytest.raises(InvalidArgumentError, match=r"A100 with .* on b, H100 with .* on a"):
        equal_facts(KEY, [answer("a", "H100"), answer("b", "A100")])
    with pytest.raises(InvalidArgumentError, match="tvmconv 0.0.1"):
        equal_facts(KEY, [answer("a", "H100", "0.0.1")])


def test_who_is_missing_is_said(tracker: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoDeviceError, match="has no server of key 'there'"):
        RPCRunner("there", HOST, tracker)
    result = CliRunner().invoke(main, ["rpc", "server", "--tracker", f"{HOST}:{free_port()}", "--key", KEY])
    assert (result.exit_code, result.stdout) == (NoDeviceError.exit_code, "")
    assert "no RPC tracker answers" in result.stderr
    with socket.create_server((HOST, 0)) as stranger:
        monkeypatch.setattr(rpc_runner, "TRACKER_SECONDS", 0.1)
        with pytest.raises(NoDeviceError, match="no RPC tracker answers"):
            count_servers(KEY, *stranger.getsockname())


def test_listening_to_other_machines_is_warned_of() -> None:
    with pytest.warns(UserWarning, match="no authentication"):
        rpc.server((HOST, 9190), KEY, "0.0.0.0", 9091, 9199, None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rpc.tracker("localhost", 9190)


def test_a_key_is_one_word() -> None:
    with pytest.raises(InvalidArgumentError, match="key is 'an h100'"):
        rpc.server((HOST, 9190), "an h100", HOST, 9091, 9199, None)


def test_templates_of_ones_own_are_sent_along(builder: LocalBuilder, runner: RPCRunner) -> None:
    """The servers do not have these templates."""
    right, wrong = (
        create_task("test/matmul", (32, "float32"), "llvm"),
        create_task("test/another-product", (16,), "llvm"),
    )
    trials = [MeasureInput(each.target, each, each.space.get(1)) for each in (right, wrong)]
    results = dict(measure_option(builder, runner).measure(trials, lambda trial: None))
    assert [results[trial].status for trial in trials] == [Status.OK, Status.WRONG_ANSWER], results
