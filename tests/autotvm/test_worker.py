"""The functions of worker processes, called here: a worker that is ended says nothing of the lines that it ran."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import tvm
import tvm_ffi

import tvmconv
from tests.autotvm.faulty_kernels import TASK, TRIAL, library
from tests.shared import templates_of_tests  # noqa: F401 (it defines templates)
from tvmconv.autotvm import rpc, task
from tvmconv.autotvm.measure import BuildResult, worker
from tvmconv.autotvm.measure.protocol import Calls, RunResult
from tvmconv.autotvm.task import Task
from tvmconv.autotvm.templates import create_task
from tvmconv.dispatch.trial import Status
from tvmconv.targets import device_facts, has_gpu, nvidia
from tvmconv.targets.devices import host_arch

ONCE = Calls(number=1, repeat=2, min_repeat_ms=0)

TASKS: dict[str, Callable[[], Task]] = {
    "dense": lambda: TASK,
    "sparse": lambda: task.create(TASK.workload, "llvm", sparsity=0.5),
    "of-ones-own": lambda: create_task("test/matmul", (16, "float32"), "llvm"),
}


def built(of: Task, folder: Path) -> BuildResult:
    knobs = of.knobs(of.space.default)
    return worker.build(of.problem.to_json(), of.message, knobs, str(of.target), str(folder / "kernel.so"))


@pytest.mark.parametrize("kind", TASKS)
@pytest.mark.parametrize("flush", [False, True], ids=["warm", "flushed"])
def test_a_kernel_is_built_checked_and_timed(kind: str, flush: bool, tmp_path: Path) -> None:
    of = TASKS[kind]()
    made = built(of, tmp_path)
    assert (made.library, made.kernels) == (str(tmp_path / "kernel.so"), ())
    calls = ONCE._replace(flush=flush)
    costs = worker.evaluate(of.problem.to_json(), made.workspace, made.library, "cpu:0", calls)
    assert len(costs) == 2
    assert all(0 < cost < made.seconds for cost in costs)


def test_machine_code_for_a_gpu_lies_beside_the_library(tmp_path: Path) -> None:
    made = built(task.create(TASK.workload, {"kind": "cuda", "arch": "sm_90"}), tmp_path)
    (kernel,) = map(Path, made.kernels)
    assert kernel.parent == tmp_path
    assert kernel.read_bytes()[:4] == b"\x7fELF"


def test_wrong_answers_say_so(tmp_path: Path) -> None:
    wrong = library(tmp_path, "return 0;")
    with pytest.raises(RuntimeError, match=r"^\[wrong answer\] 576 of 576 elements are not written"):
        worker.evaluate(TASK.problem.to_json(), wrong.workspace, wrong.library, "cpu:0", ONCE)
    of = create_task("test/another-product", (16,), "llvm")
    made = built(of, tmp_path)
    with pytest.raises(RuntimeError, match=r"^\[wrong answer\] .* elements of \w+ are wrong"):
        worker.evaluate(of.problem.to_json(), made.workspace, made.library, "cpu:0", ONCE)


def test_errors_of_a_build_have_a_type_that_survives_the_way_back(tmp_path: Path) -> None:
    illegal = {**TASK.knobs(TASK.space.default), "rows": 64, "columns": 64}
    with pytest.raises(RuntimeError, match="config is .* meets the constraints"):
        worker.build(TASK.problem.to_json(), TASK.message, illegal, str(TASK.target), str(tmp_path / "kernel.so"))


def test_devices() -> None:
    assert worker.describe("llvm") == (device_facts("llvm"), host_arch())
    assert (worker.describe("cuda")[0] is not None) == has_gpu()
    worker.touch("cpu:0")
    with pytest.raises(RuntimeError):
        worker.touch("cuda:99")


@pytest.fixture
def session(without_torch: None) -> Iterator[None]:
    """End what a session of a server keeps, and its timer, which would end the process of the tests."""
    yield
    rpc._end.cancel()
    rpc._process("llvm", 20.0).close()
    rpc._process.cache_clear()


def test_a_session_describes_its_server_and_runs_what_it_is_sent(session: None, tmp_path: Path) -> None:
    server = msgspec.json.decode(rpc._describe("llvm", 20.0), type=rpc.ServerFacts)
    assert (server.device, server.arch) == (device_facts("llvm"), host_arch())
    assert (server.tvmconv, server.tvm) == (tvmconv.__version__, tvm.__version__)

    def answer(made: BuildResult) -> RunResult:
        content = {Path(made.library).name: Path(made.library).read_bytes()}
        job = rpc.Job("llvm", TASK.problem.to_json(), made.workspace, content, ONCE, 20.0)
        message = zlib.compress(msgspec.msgpack.encode(job))
        return msgspec.json.decode(rpc._evaluate(message), type=RunResult)

    sound = answer(built(TRIAL.task, tmp_path))
    assert (sound.status, len(sound.costs)) == (Status.OK, 2)
    assert rpc._end.is_alive()
    assert answer(library(tmp_path, "return 0;")).status is Status.WRONG_ANSWER


class Driver:
    """CUDA's driver, in which a replay of a graph takes a millisecond; a function that fails may be named."""

    CUresult = SimpleNamespace(CUDA_SUCCESS=0)
    CUstream_flags = SimpleNamespace(CU_STREAM_NON_BLOCKING=1)
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL=1)

    def __init__(self, failing: str = "") -> None:
        self.failing = failing
        self.called = Counter[str]()
        self.replays = 0

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        def call(*arguments: Any) -> tuple[Any, ...]:
            self.called[name] += 1
            if name == self.failing:
                return (2,)
            if name == "cuGetErrorString":
                return 0, b"out of memory"
            if name == "cuGraphLaunch":
                self.replays += 1
            elif name == "cuEventElapsedTime":
                taken, self.replays = float(self.replays), 0
                return 0, taken
            return 0, self.called[name]

        return call


def graph_costs(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> tuple[list[float], int]:
    """Return the costs that a graph of four calls has with a driver, and the number of calls that were made."""
    monkeypatch.setattr(nvidia, "cuda_driver", lambda: driver)
    monkeypatch.setattr(tvm_ffi, "use_raw_stream", lambda device, stream: nullcontext())
    made: list[None] = []
    device = SimpleNamespace(sync=lambda: None)
    return nvidia.graph_costs(lambda: made.append(None), device, 4, 3, min_repeat_ms=4.5), len(made)


def test_a_graph_is_replayed_for_as_long_as_it_has_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    assert graph_costs(driver, monkeypatch) == ([pytest.approx(1e-3 / 4)] * 3, 4)
    assert driver.called["cuGraphLaunch"] == 1 + 1 + 3 * 5
    for kind in ("Stream", "Event"):
        assert driver.called[f"cu{kind}Create"] == driver.called[f"cu{kind}Destroy"]
    assert driver.called["cuGraphExecDestroy"] == driver.called["cuGraphDestroy"] == 1


def test_errors_of_the_driver_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match="CUDA: out of memory"):
        graph_costs(Driver(failing="cuGraphInstantiate"), monkeypatch)
