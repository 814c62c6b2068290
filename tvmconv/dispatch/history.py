"""The records of logs that may be used, among them those of similar devices, and the choice of the best one."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from contextvars import ContextVar
from functools import cache
from importlib.resources import as_file, files
from math import ceil, log2
from pathlib import Path
from typing import Any

import msgspec
import tvm

from tvmconv.problem import Problem, Workload, problem_of
from tvmconv.schedules.template import Template
from tvmconv.targets import DeviceFacts, backend_named, device_facts, is_for, resolve_target

from .call import Call
from .record import Log, Record, load_from_file
from .registry import default_config
from .task import Entity, Maker, Task
from .trial import Stage, Status

LEAST_GAIN = 1.02
"""The least expected speedup over the default for which a similar device's record is used; less is noise."""

NEAR = 1.5
"""The largest ratio of the non-zeros of two weights for which one may use the other's records."""

FAMILIES = (("NVIDIA H100 80GB HBM3", "NVIDIA H200"),)
"""Families of GPUs whose multiprocessors are the same, and equal in number, and whose memory differs.

docs/tuning.md has the gains from records of one on the other.
"""


def applicable(records: Iterable[Record], task: Task, device: DeviceFacts | None) -> list[Record]:
    """Return the records that apply to a task on a device: those of its problem and of the present template."""
    mine = (record for record in records if record.problem == task.problem)
    return sifted(mine, task.target, task.maker, device)[0]


def sifted(
    records: Iterable[Record], target: tvm.target.Target, maker: Maker, device: DeviceFacts | None
) -> tuple[list[Record], Counter[str]]:
    """Return a template's records that apply to its kernels now, and for each objection the number of others."""
    usable, objections = [], Counter[str]()
    for record in records:
        if record.template != maker.name:
            continue
        if (why := objection(record, target, maker, device)) is None:
            usable.append(record)
        else:
            objections[why] += 1
    return usable, objections


def objection(record: Record, target: tvm.target.Target, maker: Maker, device: DeviceFacts | None) -> str | None:
    """Return the reason why a record does not apply to a template's kernels for a target on a device; None if it does.

    The driver may be another one. `device` is None for a kernel that is built on a machine without the device.
    """
    if record.tvm_version != tvm.__version__:
        return f"made with TVM {record.tvm_version}"
    if record.versions.template != maker.version:
        return f"of version {record.versions.template} of the template"
    if device is None:
        fits = is_for(target, record.device)
    else:
        fits = (record.device.name, record.device.threads) == (device.name, device.threads)
    if not fits:
        return f"measured on {record.device}"
    if processor(record.target) != processor(str(target)):
        return f"made for {processor(record.target)}"
    return None if maker.accepts(record.knobs) else "with other knobs"


def serves(measured: float | None, sparsity: float | None) -> bool:
    """Return whether records of one share of zeros choose for a weight with another; None stands for dense kernels.

    The best configuration weighs code, whose length grows with the non-zeros, against staging, which does not depend on
    them. So the ratio of non-zeros has to be near, at most `NEAR`: from 90% zeros to 85% or 93%, but from 50% to 25% or
    67%.
    """
    if measured is None or sparsity is None:
        return measured is sparsity
    fewer, more = sorted((1 - measured, 1 - sparsity))
    return more <= NEAR * fewer + 1e-9


def best_record(records: Iterable[Record]) -> Record | None:
    """Return the record to use, of those that apply to one problem; its costs are all costs of its configuration.

    Configurations that were measured again at the end of a tuning run, the default among them, come before those that
    were measured in the search alone. A configuration that has failed is left out.
    """
    trials = defaultdict[tuple[Stage, Entity], list[Record]](list)
    failed = set()
    for record in records:
        trials[record.stage, record.config.entity].append(record)
        if record.status is not Status.OK:
            failed.add(record.config.entity)
    for stage in (Stage.CONFIRM, Stage.SEARCH):
        candidates = [
            _pooled(same) for (reached, entity), same in trials.items() if reached is stage and entity not in failed
        ]
        if candidates:
            return min(candidates, key=lambda record: record.cost)
    return None


def _pooled(records: Sequence[Record]) -> Record:
    costs = tuple(cost for record in records for cost in record.costs)
    last = records[-1]
    return msgspec.structs.replace(last, result=(costs, *last.result[1:]))


_Key = tuple[Workload, str, str]
"""The workload, the precision and the direction: problems that share these differ in sparsity alone."""


def _key(problem: Problem) -> _Key:
    return problem.workload, problem.precision, problem.direction


class History:
    """The records of a log, with a search for the best configuration of a workload."""

    def __init__(self, log: Log, source: str) -> None:
        self.source = source
        self.skipped = log.skipped
        self._records = defaultdict[_Key, defaultdict[float | None, list[Record]]](lambda: defaultdict(list))
        self._calls = defaultdict[Call, list[Record]](list)
        for record in log.records:
            if isinstance(problem := record.problem, Call):
                self._calls[problem].append(record)
            else:
                self._records[_key(problem)][problem.sparsity].append(record)

    def knows(self, problem: Problem) -> bool:
        """Return whether there are records of a problem, of any device and template."""
        return _key(problem) in self._records and bool(self._shares(problem))

    def best(
        self, problem: Problem, target: tvm.target.Target, template: Template, device: DeviceFacts | None
    ) -> tuple[Record | None, Counter[str]]:
        """Return the record to use for a problem, if there is one, and the reasons why others are left out.

        For a sparse kernel it is one of the nearest share of zeros.
        """
        left_out = Counter[str]()
        for share in self._shares(problem):
            records, objections = sifted(self._records[_key(problem)][share], target, Maker.of(template), device)
            left_out += objections
            if (record := best_record(records)) is not None:
                return record, left_out
        return None, left_out

    def best_of_sibling(
        self, problem: Problem, target: tvm.target.Target, template: Template, device: DeviceFacts
    ) -> Record | None:
        """Return the record of the nearest device like the present one, if it should beat the default here."""
        records = [record for share in self._shares(problem) for record in self._records[_key(problem)][share]]
        others = {record.device for record in records if are_siblings(record.device, device)} - {device}
        for other in sorted(others, key=lambda other: distance(device, other)):
            record, _ = self.best(problem, target, template, other)
            if record is not None and self._pays(record, problem, target, template, device):
                return record
        return None

    def _pays(
        self,
        record: Record,
        problem: Problem,
        target: tvm.target.Target,
        template: Template,
        device: DeviceFacts,
    ) -> bool:
        """Return whether a sibling's record should beat the default on a device, by measurements of both there.

        The default is that of the measured problem, which for a network or for open sizes may be another one.
        """
        measured = problem_of(problem.workload, record.sparsity, problem.precision, problem.direction)
        config = default_config(template, measured, str(target))
        same, _ = sifted(self._records[_key(problem)][record.sparsity], target, Maker.of(template), record.device)
        default = best_record(each for each in same if msgspec.convert(each.knobs, template.Config) == config)
        if default is None:
            return False
        best = msgspec.convert(record.knobs, template.Config), record.cost
        gain = expected_gain(best, (config, default.cost), measured, template, target, record.device, device)
        return gain > LEAST_GAIN

    def _shares(self, problem: Problem) -> list[float | None]:
        """Return the shares of zeros with records for a problem, the nearest first; None is that of dense kernels."""
        shares = [share for share in self._records[_key(problem)] if serves(share, problem.sparsity)]
        return sorted(shares, key=lambda share: abs((share or 0.0) - (problem.sparsity or 0.0)))

    def best_of_task(self, task: Task, device: DeviceFacts | None) -> tuple[Record | None, Counter[str]]:
        """Return `best` for a task of a user-defined template."""
        records = self._calls.get(task.problem, []) if isinstance(task.problem, Call) else []
        usable, left_out = sifted(records, task.target, task.maker, device)
        return best_record(usable), left_out


applied: ContextVar[tuple[History, ...]] = ContextVar("applied", default=())
"""The logs that `autotvm.apply_history_best` applies, the innermost first."""


@cache
def shipped() -> History:
    """Return the logs in `tuning_logs/`."""
    log = Log()
    with as_file(files("tvmconv.tuning_logs")) as folder:
        for path in sorted(Path(folder).glob("*.jsonl")):
            log.records += load_from_file(path).records
    return History(log, "tuning_logs")


def device_here(target: tvm.target.Target) -> DeviceFacts | None:
    """Return the device of a target, if it is here: a target may be for another kind of CPU, or of GPU."""
    kind = str(target.kind.name)
    if processor(str(resolve_target(kind))) != processor(str(target)):
        return None
    device = device_facts(kind)
    return device if device is not None and is_for(target, device) else None


def processor(target: str) -> str:
    """Return the processor of a target, given as JSON: an architecture of GPU, or a CPU and its features.

    For a CPU that is not an x86 the architecture comes first, as CPUs of several architectures are called "generic".
    """
    config = json.loads(target)
    arch = backend_named(config["kind"]).arch(config)
    words = [str(config.get("arch") or config.get("mcpu")), *sorted(config.get("mattr", ()))]
    return " ".join(words if arch in (words[0], "x86_64") else [arch, *words])


def are_siblings(one: DeviceFacts, other: DeviceFacts) -> bool:
    """Return whether two devices are GPUs of one family, or CPUs with the same core, on however many threads."""
    if one.threads is not None and other.threads is not None:
        return _core(one) == _core(other)
    return any(one.name in family and other.name in family for family in FAMILIES)


def distance(one: DeviceFacts, other: DeviceFacts) -> tuple[float, bool]:
    """Return how far siblings are apart: by the ratio of their threads first, then by name."""
    return abs(log2((one.threads or 1) / (other.threads or 1))), one.name != other.name


def expected_gain(
    best: tuple[Any, float],
    default: tuple[Any, float],
    problem: Problem,
    template: Template,
    target: tvm.target.Target,
    measured_on: DeviceFacts,
    device: DeviceFacts,
) -> float:
    """Return the expected ratio of the default's time to a configuration's on a device, from both on its sibling.

    Both are given with seconds of a call. On a CPU each takes as long as the thread with the most tasks, so a
    configuration with too few tasks for many threads, or that does not divide well among them, loses its gain on few
    threads.
    """

    def seconds(config: Any, cost: float) -> float:
        if device.threads is None or measured_on.threads is None:
            return cost
        if not getattr(config, "parallel", False):
            return cost
        tasks = int(template.features(problem, config, target).get("tasks", 1))
        return cost * ceil(tasks / device.threads) / ceil(tasks / measured_on.threads)

    return seconds(*default) / seconds(*best)


def _core(cpu: DeviceFacts) -> str:
    """Return LLVM's name of a CPU's core, which `device_facts` puts behind the CPU's own name."""
    return cpu.name.rpartition("(")[2]
