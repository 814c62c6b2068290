"""Workers are forks of one process that has imported TVM, and begin as a new process of this one would."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tvmconv.autotvm.measure import fork_server, worker
from tvmconv.autotvm.measure.processes import WorkerPool

pytestmark = pytest.mark.usefixtures("without_torch")

Begin = Callable[[], WorkerPool]


@pytest.fixture
def begin() -> Iterator[Begin]:
    pools = []

    def begin() -> WorkerPool:
        pools.append(WorkerPool(1, 60, worker.initialize))
        return pools[-1]

    yield begin
    for pool in pools:
        pool.shutdown()


def test_one_process_forks_all_workers(begin: Begin) -> None:
    forked = [begin().submit(lambda: (os.getpid(), os.getppid())).result() for _ in range(2)]
    assert forked[0][0] != forked[1][0]
    assert {parent for _, parent in forked} == {fork_server.fork_server()._process.pid}
    assert os.getpid() not in forked[0]


def test_a_worker_that_has_had_its_calls_is_followed_by_another() -> None:
    pool = WorkerPool(1, 60, worker.initialize, calls=2)
    try:
        first, again, other = (pool.submit(os.getpid).result() for _ in range(3))
    finally:
        pool.shutdown()
    assert first == again != other


def test_backends_that_the_server_leaves_out_are_there(begin: Begin) -> None:
    def found() -> tuple[bool, bool]:
        import tvm

        return "tvm.tirx.cuda" in sys.modules, "nvidia/nvidia-h100" in tvm.target.list_tags()

    assert begin().submit(found).result() == (True, True)


def test_a_worker_begins_where_its_caller_is(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server began elsewhere."""
    begin().submit(os.getpid).result()
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    monkeypatch.setenv("OF_THIS_TEST", "1")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.syspath_prepend("/nowhere")

    def surroundings() -> tuple[object, ...]:
        names = {name: value for name, value in os.environ.items() if not name.startswith("TVM")}  # chosen anew
        return names, sys.path, os.sched_getaffinity(0), Path().stat().st_ino

    expected = surroundings()
    assert begin().submit(surroundings).result() == expected


def test_a_worker_has_the_cores_of_its_caller(begin: Begin) -> None:
    """The caller is a thread of the pool, which has the cores of the one that gave it a call."""
    mask = os.sched_getaffinity(0)
    core = max(mask)
    os.sched_setaffinity(0, {core})
    try:
        assert begin().submit(os.sched_getaffinity, 0).result() == {core}
    finally:
        os.sched_setaffinity(0, mask)


def test_a_worker_is_killed_with_what_it_started(begin: Begin) -> None:
    pool = begin()
    started = pool.submit(lambda: subprocess.Popen(["sleep", "600"]).pid).result()
    handle = os.pidfd_open(started)
    pool.shutdown()
    assert fork_server.readable(handle, 10)
    os.close(handle)


def test_the_time_of_a_call_is_up_though_no_thread_of_its_process_runs() -> None:
    pool = WorkerPool(1, 0.5, worker.initialize)
    with pytest.raises(TimeoutError):
        pool.submit(re.fullmatch, "(a+)+b", 40 * "a").result()  # for hours, with Python's lock
    assert pool.submit(abs, -1).result() == 1
    pool.shutdown()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[fork_server.ForkServer]:
    """Yield a server that no worker of another test is forked from, and that may die."""
    monkeypatch.setattr(fork_server, "_server", None)
    yield fork_server.fork_server()
    fork_server.fork_server().close()


def pause(begun: Path) -> None:
    begun.touch()
    signal.pause()


def test_workers_die_with_the_server_and_another_begins(
    server: fork_server.ForkServer, begin: Begin, tmp_path: Path
) -> None:
    pool, begun = begin(), tmp_path / "begun"
    lost = pool.submit(pause, begun)
    while not (begun.exists() or lost.done()):
        time.sleep(0.01)
    os.kill(server._process.pid, signal.SIGKILL)
    with pytest.raises(ChildProcessError):
        lost.result()
    assert pool.submit(os.getppid).result() == fork_server.fork_server()._process.pid != server._process.pid


def test_a_worker_that_died_idle_is_replaced(begin: Begin) -> None:
    """Its next call would fail else, as one that ends its process does."""
    pool = begin()
    pid = pool.submit(os.getpid).result()
    (worker_process,) = pool._worker_map.values()
    os.kill(pid, signal.SIGKILL)
    assert fork_server.readable(worker_process._proc.handle, 10)
    assert pool.submit(os.getpid).result() != pid


def test_a_worker_is_killed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second thread would close the file descriptor of the process again, which may be another file's by then."""
    killed = []

    def slowly(fork: fork_server.Fork) -> None:
        killed.append(fork)
        time.sleep(0.2)
        kill(fork)

    kill = fork_server.Fork.kill
    monkeypatch.setattr(fork_server.Fork, "kill", slowly)
    pool = WorkerPool(1, 60, worker.initialize)
    pool.submit(os.getpid).result()
    (process,) = pool._worker_map.values()
    threads = [threading.Thread(target=process.kill) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(killed) == 1
    pool.shutdown()


def test_a_server_that_dies_over_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "MAIN", "import os, sys; os.read(int(sys.argv[1]), 1)")
    ours, its = os.pipe()
    server = fork_server.ForkServer()
    for _ in range(2):
        with pytest.raises(ChildProcessError, match="the process that workers are forked from has died"):
            server.fork(ours, its)
    assert not server.alive
    server.close()
    os.close(ours)
    os.close(its)


def test_a_fork_of_this_process_leaves_the_server_to_it() -> None:
    server = fork_server.fork_server()
    pid = os.fork()
    if not pid:
        os._exit(fork_server._server is not None)
    assert os.waitpid(pid, 0)[1] == 0
    assert fork_server.fork_server() is server
