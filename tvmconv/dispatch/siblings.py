"""Devices so alike that records of one serve on the other, where its own records say no more."""

from __future__ import annotations

from math import ceil, log2
from typing import TYPE_CHECKING, Any

from tvmconv.problem import Problem
from tvmconv.schedules.template import Template
from tvmconv.targets import DeviceFacts

if TYPE_CHECKING:
    import tvm

FAMILIES = (("NVIDIA H100 80GB HBM3", "NVIDIA H200"),)
"""The families of GPUs with the same multiprocessors, as many of them, and other memory.

docs/tuning.md has the gains from records of one on the other.
"""


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
    """Return the ratio of the default's time to a configuration's on a device, expected from both on its sibling.

    Both are given with seconds of a call. On a CPU each takes as long as the thread with the most tasks, so what has
    too few tasks for many threads, or does not divide well among them, loses what it has won on few.
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
