"""The number of threads that kernels on a CPU are spread over, on machines and in containers of every kind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import tvmconv
from tvmconv.autotvm.measure import worker
from tvmconv.autotvm.measure.processes import WorkerPool
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.support import system
from tvmconv.targets import threads
from tvmconv.targets.threads import BINDING, CHOSEN, NUMBER

pytestmark = pytest.mark.usefixtures("without_torch")

V1 = "30 20 0:9 {inside} /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu,cpuacct"
V2 = "30 20 0:9 {inside} /sys/fs/cgroup rw shared:5 - cgroup2 cgroup2 rw"


@dataclass(frozen=True)
class Machine:
    """A system's description of itself, and the number of threads that it should get."""

    id: str
    threads: int
    reason: str
    processors: int = 8
    siblings: int = 1
    """The number of logical processors of a core."""
    adjacent: bool = True
    """True if those of a core have adjacent numbers, else half of all lies between."""
    mask: tuple[int, ...] | None = None
    files: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    binding: str = "0"


def group(path: str, mount: str, **limits: str) -> dict[str, str]:
    """Return files of a control group; `__` in a limit's name stands for its folder and `_` in cpu_max for the dot."""
    folder = "sys/fs/cgroup"
    texts = {f"{folder}/{name.replace('__', '/').replace('cpu_max', 'cpu.max')}": text for name, text in limits.items()}
    return {"proc/self/cgroup": path, "proc/self/mountinfo": mount, **texts}


MACHINES = (
    Machine("cores", 8, "one for each of 8 physical cores", binding="1"),
    Machine("hyperthreads-side-by-side", 4, "one for each of 4 physical cores", siblings=2),
    Machine("hyperthreads-apart", 4, "one for each of 4 physical cores", siblings=2, adjacent=False),
    Machine("a-mask", 3, "3 physical cores in the affinity mask", mask=(2, 5, 7)),
    Machine("a-mask-of-one-core", 1, "1 physical cores in the affinity mask", siblings=2, mask=(4, 5)),
    Machine(
        "quota-v2",
        1,
        "the container's quota of 1.5 CPUs",
        files=group("0::/", V2.format(inside="/"), cpu_max="150000 100000"),
    ),
    Machine(
        "quota-v2-of-a-level-above",
        2,
        "quota of 2.5 CPUs",
        files=group("0::/a/b", V2.format(inside="/"), a__b__cpu_max="max 100000", a__cpu_max="250000 100000"),
    ),
    Machine(
        "no-quota-v2",
        8,
        "physical cores",
        files=group("0::/", V2.format(inside="/"), cpu_max="max 100000"),
        binding="1",
    ),
    Machine(
        "a-quota-of-more-than-there-is",
        8,
        "physical cores",
        files=group("0::/", V2.format(inside="/"), cpu_max="1600000 100000"),
    ),
    Machine(
        "quota-v1-seen-from-inside-a-container",
        1,
        "the container's quota of 1.5 CPUs",
        files=group(
            "4:memory:/docker/1\n3:cpu,cpuacct:/docker/1",
            V1.format(inside="/docker/1"),
            **{"cpu__cpu.cfs_quota_us": "150000", "cpu__cpu.cfs_period_us": "100000"},
        ),
    ),
    Machine(
        "no-quota-v1",
        8,
        "physical cores",
        files=group(
            "3:cpu,cpuacct:/",
            V1.format(inside="/"),
            **{"cpu__cpu.cfs_quota_us": "-1", "cpu__cpu.cfs_period_us": "100000"},
        ),
        binding="1",
    ),
    Machine(
        "a-quota-of-half-a-CPU", 1, "quota of 0.5", files=group("0::/", V2.format(inside="/"), cpu_max="50000 100000")
    ),
    Machine("set-for-TVM", 3, f"set by {NUMBER}", environment={NUMBER: "3", "OMP_NUM_THREADS": "5"}),
    Machine("set-for-OpenMP", 5, "set by OMP_NUM_THREADS", environment={"OMP_NUM_THREADS": "5,2"}),
    Machine("set-to-all", 8, f"set by {NUMBER}", environment={NUMBER: "8"}, binding="1"),
    Machine("more-than-cores", 8, f"set by {NUMBER}", siblings=2, environment={NUMBER: "8"}),
    Machine(
        "chosen-by-a-process-above",
        8,
        "physical cores",
        environment={NUMBER: "3", BINDING: "0", CHOSEN: f"{NUMBER}=3,{BINDING}=0"},
        binding="1",
    ),
    Machine("chosen-above-then-set", 3, f"set by {NUMBER}", environment={NUMBER: "3", CHOSEN: f"{NUMBER}=2"}),
    Machine("unbound-by-the-user", 8, "physical cores", environment={BINDING: "0"}),
)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.id)
def test_machines(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = machine.processors // machine.siblings
    for processor in range(machine.processors):
        core = processor // machine.siblings if machine.adjacent else processor % cores
        topology = tmp_path / f"sys/devices/system/cpu/cpu{processor}/topology"
        topology.mkdir(parents=True)
        (topology / "core_cpus_list").write_text(f"core {core}\n")
    for name, text in machine.files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    monkeypatch.setattr(os, "cpu_count", lambda: machine.processors)
    monkeypatch.setattr(system, "processors", lambda: list(machine.mask or range(machine.processors)))

    environment = dict(machine.environment)
    choice = threads.choose(environment, tmp_path)
    assert choice.threads == machine.threads
    assert machine.reason in choice.reason
    threads.configure(environment, tmp_path)
    assert (environment[NUMBER], environment[BINDING]) == (str(machine.threads), machine.binding)
    again = dict(environment)
    threads.configure(again, tmp_path)  # as in a process that this one starts
    assert again == environment


def test_a_number_that_is_none_is_left_out_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(system, "processors", lambda: [0, 1, 2])
    for text in ("0", "-2", "many", "", "1.5"):
        with pytest.warns(UserWarning, match=f"OMP_NUM_THREADS is '{text}'"):
            assert threads.choose({"OMP_NUM_THREADS": text}, tmp_path).threads == 3


def test_a_system_that_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each processor is a core, and there is no quota; so it is with damaged files."""
    monkeypatch.setattr(system, "processors", lambda: [0, 1, 2])
    assert threads.choose({}, tmp_path).threads == 3
    for text in ("", "none of its kind", "1 0", "5 0"):
        for name, each in group("0::/", V2.format(inside="/"), cpu_max=text).items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(each)
        assert threads.cpu_quota(tmp_path) is None


COUNT = """
import json, os, sys
import numpy as np
{before}
import tvmconv
{after}
import tvm
tasks = lambda: len(os.listdir("/proc/self/task"))
before = tasks()
workload = tvmconv.ConvWorkload.conv2d((1, 16, 40, 40), (32, 16, 1, 1))
operator = tvmconv.compile(workload)
x, w = np.ones(workload.x_shape, "float32"), np.ones(workload.w_shape, "float32")
operator(x, w)
print(json.dumps([tvmconv.get_num_threads(), 1 + tasks() - before, sorted(os.sched_getaffinity(0))]))
"""


def counted(before: str = "", after: str = "", **environment: str) -> tuple[int, int, list[int]]:
    """Return the threads that a new process reports, those that TVM has started, and the mask that is left."""
    names = (NUMBER, BINDING, CHOSEN, "OMP_NUM_THREADS")
    unset = {name: value for name, value in os.environ.items() if name not in names}
    script = COUNT.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-c", script], env=unset | environment, capture_output=True, text=True, check=True
    )
    said, counted, mask = json.loads(done.stdout)
    return said, counted, mask


CORES = len(threads.physical_cores(system.processors()))
LAST = system.processors()[-1]


def test_a_process_with_nothing_set_uses_every_core() -> None:
    assert counted()[:2] == (CORES, CORES)


def test_a_process_with_a_mask_stays_in_it() -> None:
    """TVM would bind it to the first processors."""
    assert counted(before=f"os.sched_setaffinity(0, [{LAST}])") == (1, 1, [LAST])


def test_a_number_that_is_set() -> None:
    assert counted(TVM_NUM_THREADS="1", OMP_NUM_THREADS="2")[:2] == (1, 1)
    assert counted(OMP_NUM_THREADS="1")[:2] == (1, 1)
    assert counted(after=f"tvmconv.set_num_threads({CORES})", OMP_NUM_THREADS="1")[:2] == (CORES, CORES)


def test_a_pool_that_is_there_becomes_smaller_and_not_larger() -> None:
    after = (
        f"import tvm; assert tvmconv.get_num_threads() == {CORES}\n"
        "tvmconv.set_num_threads(1)\n"
        "assert tvmconv.get_num_threads() == 1 and os.environ['TVM_NUM_THREADS'] == '1'\n"
        f"tvmconv.set_num_threads({CORES})\n"
        f"try: tvmconv.set_num_threads({CORES + 1})\n"
        f"except tvmconv.TvmconvError as error: assert 'expected at most {CORES} in this thread' in str(error), error\n"
        "else: assert False\n"
        f"assert os.environ['TVM_NUM_THREADS'] == '{CORES}'\n"
    )
    assert counted(after=after)[0] == CORES


@pytest.mark.parametrize("number", [0, -1, 1.0, "2", True, None])
def test_numbers_that_are_none(number: object) -> None:
    with pytest.raises(InvalidArgumentError, match="expected a positive number of threads"):
        tvmconv.set_num_threads(number)  # type: ignore[arg-type]


def test_workers_of_the_tuner_have_as_many() -> None:
    pool = WorkerPool(1, 60, worker.initialize)
    try:
        assert pool.submit(tvmconv.get_num_threads).result() == tvmconv.get_num_threads()
    finally:
        pool.shutdown()


def test_doctor_says_how_many_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconv.checking.doctor import check_threads

    assert check_threads().found.startswith(f"{tvmconv.get_num_threads()}: ")
    monkeypatch.setenv(NUMBER, "700")
    assert "instead of 700 (set by TVM_NUM_THREADS)" in check_threads().found


def test_functions_choose_anew_for_another_number() -> None:
    import numpy as np

    from tvmconv.runtime import operators

    x, w = np.ones((1, 3, 5, 5), "float32"), np.ones((3, 1, 3, 3), "float32")
    tvmconv.depthwise(x, w)
    kept = len(operators._operators)
    tvmconv.depthwise(x, w)
    assert len(operators._operators) == kept
    tvmconv.set_num_threads(tvmconv.get_num_threads())
    tvmconv.depthwise(x, w)
    assert len(operators._operators) == kept + 1
