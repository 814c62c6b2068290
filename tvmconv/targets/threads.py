"""The number of threads that a kernel on a CPU is spread over: one for each physical core that this process may use.

TVM gives each thread that calls kernels a pool of its own, of `TVM_NUM_THREADS` threads. Without that variable it takes
half of the logical processors, whatever they are, and binds its threads to the first ones, whoever else does so too.
`import tvmconv` therefore sets the variables of TVM before TVM makes its first pool.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import NamedTuple

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.support import system

NUMBER, BINDING = "TVM_NUM_THREADS", "TVM_BIND_THREADS"
"""Variables that TVM reads when it makes a pool: its number of threads, and "0" for threads bound to no processor."""

NUMBERS_OF_USERS = (NUMBER, "OMP_NUM_THREADS")
"""Variables in which users give a number of threads; the first that is set wins."""

CHOSEN = "TVMCONV_CHOSE"
"""The variable with the values that tvmconv chose for TVM's variables: a process that inherits them chooses again."""

ROOT = Path("/")

changes = 0
"""The number of calls of `set_num_threads`: kernels that were chosen before one may be others after it."""

MODE_BIG = 1
"""TVM's number for a pool on a machine's fastest cores, which is how it makes every pool."""


class Choice(NamedTuple):
    """A number of threads for TVM's pools."""

    threads: int
    reason: str
    """The reason for this number."""
    binding: str
    """The value of `BINDING`: "1" where each thread has a core of the machine, as TVM takes for granted, else "0"."""


def configure(environment: MutableMapping[str, str] = os.environ, root: Path = ROOT) -> None:
    """Set the variables that TVM reads when it makes a pool; variables that users have set stay."""
    for name, value in _chosen(environment).items():
        if environment.get(name) == value:
            del environment[name]
    choice = choose(environment, root)
    chosen = {NUMBER: str(choice.threads), BINDING: choice.binding}
    for name in _set_by_user(environment):
        del chosen[name]
    environment.update(chosen)
    environment[CHOSEN] = ",".join(f"{name}={value}" for name, value in chosen.items())


def choose(environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> Choice:
    """Return the number of threads that users give, else one for each core in the affinity mask and the CPU quota."""
    mask = system.processors()
    cores = physical_cores(mask, root)
    threads, reason = len(cores), f"one for each of {len(cores)} physical cores"
    if len(mask) < (os.cpu_count() or 1):
        reason += " in the affinity mask"
    quota = cpu_quota(root)
    if quota is not None and quota < threads:
        threads, reason = max(1, int(quota)), f"the container's quota of {quota:g} CPUs"
    of_process = _chosen(environment)
    for name in NUMBERS_OF_USERS:
        text = environment.get(name)
        if text is None or of_process.get(name) == text:
            continue
        # OpenMP takes a number for each level of nesting, of which the first is meant.
        given = re.match(r"\s*0*([1-9]\d*)\s*(,|$)", text)
        if given is None:
            warnings.warn(f"{name} is {text!r}, which is no positive number, and is ignored", stacklevel=2)
            continue
        threads, reason = int(given[1]), f"set by {name}"
        break
    alone_on_the_machine = quota is None and cores == list(range(os.cpu_count() or 1))
    return Choice(threads, reason, "1" if alone_on_the_machine and threads == len(cores) else "0")


def get_num_threads() -> int:
    """Return the number of threads that a kernel on a CPU is spread over, where this thread calls it."""
    if sys.modules.get("tvm") is None:
        return choose().threads
    import tvm

    return int(tvm.get_global_func("runtime.NumThreads")())


def set_num_threads(threads: int) -> None:
    """Spread kernels on a CPU over a number of threads, whatever the environment says.

    It holds for this thread, for all that have not yet called a kernel, and for processes that are started later. TVM's
    pool of a thread can be made smaller and not larger: `InvalidArgumentError` says so where this thread has called
    kernels with fewer threads. Operators and networks that are built already keep the configurations that were chosen
    for another number; functions on arrays choose again.
    """
    global changes
    if not isinstance(threads, int) or isinstance(threads, bool) or threads < 1:
        raise InvalidArgumentError("threads", threads, "a positive number of threads")
    changes += 1
    before = dict(os.environ)
    os.environ[NUMBER] = str(threads)
    os.environ[CHOSEN] = ",".join(f"{name}={value}" for name, value in _chosen(before).items() if name != NUMBER)
    if BINDING in _chosen(before):
        os.environ[BINDING] = choose().binding
    if sys.modules.get("tvm") is None:
        return
    import tvm

    configure_pool, held = tvm.get_global_func("runtime.config_threadpool"), get_num_threads()
    if held == threads:
        return
    configure_pool(MODE_BIG, threads)
    if (actual := get_num_threads()) != threads:
        configure_pool(MODE_BIG, held)
        os.environ.update({name: before[name] for name in (NUMBER, BINDING, CHOSEN) if name in before})
        expected = f"at most {actual} in this thread, which has called kernels: TVM's pool of threads cannot grow"
        raise InvalidArgumentError("threads", threads, expected)


def usable_cpus() -> int:
    """Return how many processes should work at once: the processors in the affinity mask, within the CPU quota."""
    quota, processors = cpu_quota(), len(system.processors())
    return processors if quota is None else max(1, min(processors, int(quota)))


def physical_cores(processors: list[int], root: Path = ROOT) -> list[int]:
    """Return the first of the processors in each physical core, as the system tells which share one."""
    first: dict[str, int] = {}
    for processor in processors:
        topology = root / f"sys/devices/system/cpu/cpu{processor}/topology"
        names = (topology / "core_cpus_list", topology / "thread_siblings_list")  # the second is the older name
        siblings = next((text for name in names if (text := _read(name))), str(processor))
        first.setdefault(siblings, processor)
    return list(first.values())


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPUs' time that control groups leave the process, the least of all levels; None without a limit."""
    quotas = [quota for folder in _control_groups(root) if (quota := _quota(folder)) is not None]
    return min(quotas, default=None)


def _quota(folder: Path) -> float | None:
    """Return the quota of a control group, of version 2 or of version 1."""
    if (limit := _read(folder / "cpu.max")) is not None:
        quota, _, period = limit.partition(" ")
    else:
        quota, period = (_read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period"))
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _control_groups(root: Path) -> Iterator[Path]:
    """Yield the folders of the control groups that limit this process's CPU time, and of all above them."""
    lines = (line.split(":", 2) for line in (_read(root / "proc/self/cgroup") or "").splitlines())
    groups = {"cgroup2" if not names else "cgroup": path for _, names, path in lines if _limits_cpu(names)}
    for line in (_read(root / "proc/self/mountinfo") or "").splitlines():
        mount, _, system = line.partition(" - ")
        inside, folder = mount.split()[3:5]
        kind, _, options = system.split(maxsplit=2)
        if kind not in groups or (kind == "cgroup" and "cpu" not in options.split(",")):
            continue
        top, path = root / folder.lstrip("/"), groups[kind]
        # A container may see its own group as the top of what is mounted, and its path as outside.
        below = path.removeprefix(inside).strip("/") if path.startswith(inside) else ""
        group = top / below
        yield from (group, *(above for above in group.parents if above.is_relative_to(top)))


def _limits_cpu(names: str) -> bool:
    """Return whether a hierarchy with these controllers may limit CPU time; version 2 has one and names none."""
    return not names or "cpu" in names.split(",")


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return None


def _chosen(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `configure` chose, in this process or in one that started it."""
    pairs = (pair.partition("=") for pair in environment.get(CHOSEN, "").split(",") if pair)
    return {name: value for name, _, value in pairs}


def _set_by_user(environment: Mapping[str, str]) -> list[str]:
    return [name for name in (NUMBER, BINDING) if name in environment]
