"""The equipment that templates for NVIDIA GPUs share: constraints, default, space, features and residency."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Protocol, TypeVar

import tvm

from tvmconv.problem import Problem
from tvmconv.targets import arch_of, tensor_instructions
from tvmconv.targets.devices import WARP, Gpu, gpu_of

from ..estimated import EstimatedTemplate
from ..space import Space, ceil_div, ceil_to, named
from .machine import BLOCK_BYTES, MAX_REGISTERS, QUARTERS, REGISTERS
from .model import Counts, clocks
from .model.rates import factors_of, rates_of


class Tiles(Protocol):
    """A configuration of a block of threads."""

    @property
    def threads(self) -> int:
        """The number of threads of a block."""


C = TypeVar("C", bound=Tiles)

Tests = dict[str, Callable[[C], bool]]
"""Tests of a configuration, by their names."""


class GpuTemplate(EstimatedTemplate[C]):
    """A template for NVIDIA GPUs, an implementation of `schedules.template.Template`.

    A subclass gives the resources of a block and its threads (`registers`, `shared_bytes`, `blocks`, `instructions`),
    the rules of its own (`rules`), the configurations that are tried (`candidates`, `knobs`, `heuristics`), `obstacle`,
    `counts`, `sizes`, `ablations` and `schedule`. Constraints, default, estimate, space, features and residency follow
    from these. A subclass whose estimate is by a model of its own overrides `estimate`.
    """

    MAX_UNROLLED: float = inf
    """The most instructions of a thread that follow each other without a loop."""

    MAX_THREADS_Z = 64
    """The most threads of a block along z."""

    WORTH_A_TRIAL = 1.5
    """Configurations with an estimate up to this multiple of the default's are in the space."""

    @abstractmethod
    def registers(self, problem: Problem, config: C) -> int:
        """Return the registers of a thread."""

    @abstractmethod
    def blocks(self, problem: Problem, config: C) -> int:
        """Return the number of blocks of the grid."""

    def blocks_y(self, problem: Problem, config: C) -> int:
        """Return the blocks of the grid along y, fewer than 2^16."""
        return 1

    def shared_bytes(self, problem: Problem, config: C) -> int:
        """Return the bytes of shared memory of a block."""
        return 0

    def instructions(self, problem: Problem, config: C) -> float:
        """Return the instructions of a thread that follow each other without a loop, at most `MAX_UNROLLED`."""
        return 0

    def max_registers(self, problem: Problem, config: C) -> int:
        """Return the most registers of a thread with which a block has room, in whole fours of warps: one a quarter."""
        return min(MAX_REGISTERS, REGISTERS // ceil_to(config.threads, QUARTERS * WARP))

    def max_shared_bytes(self, target: tvm.target.Target) -> int:
        """Return the most bytes of dynamic shared memory of a block.

        A template whose buffers are static, in the scope "shared", returns the target's `max_shared_memory_per_block`.
        """
        return gpu_of(target).shared_bytes - BLOCK_BYTES

    def threads_z(self, config: C) -> int:
        """Return the threads of a block along z, at most `MAX_THREADS_Z`."""
        return 1

    def rules(self, problem: Problem) -> Tests[C]:
        """Return the tests of a legal configuration beside those of resources, by name."""
        return {}

    @abstractmethod
    def knobs(self, problem: Problem, default: C) -> Mapping[str, tuple[Any, ...]]:
        """Return the values of each knob in the space."""

    def heuristics(self, problem: Problem) -> Tests[C]:
        """Return the tests of a configuration that is worth a trial, by name."""
        return {}

    @abstractmethod
    def sizes(self, problem: Problem, config: C) -> Mapping[str, float]:
        """Return the features of a configuration beside its clocks, threads and blocks."""

    def constraints(self, problem: Problem, target: tvm.target.Target) -> Tests[C]:
        """Return the tests that a configuration must pass, by name."""
        shared = self.max_shared_bytes(target)
        max_threads = int(target.attrs["max_threads_per_block"])

        def threads(config: C) -> bool:
            return config.threads <= max_threads and self.threads_z(config) <= self.MAX_THREADS_Z

        def registers(config: C) -> bool:
            return self.registers(problem, config) <= self.max_registers(problem, config)

        def straight_line(config: C) -> bool:
            return self.instructions(problem, config) <= self.MAX_UNROLLED

        def shared_memory(config: C) -> bool:
            return self.shared_bytes(problem, config) <= shared

        def grid(config: C) -> bool:
            return self.blocks(problem, config) < 2**31 and self.blocks_y(problem, config) < 2**16

        unrolled = named(straight_line) if inf > self.MAX_UNROLLED else {}
        return {**self.rules(problem), **named(threads, registers, shared_memory, grid), **unrolled}

    def clocks(self, counts: Counts, target: tvm.target.Target) -> float:
        gpu = gpu_of(target)
        return clocks(counts, gpu, rates_of(gpu), factors_of(type(self).__module__))

    def space(self, problem: Problem, target: tvm.target.Target) -> Space[C]:
        """Return the configurations that are worth a trial on a target."""
        default = self.default_config(problem, target)
        bound = self.WORTH_A_TRIAL * self.estimate(problem, default, target)

        def promising(config: C) -> bool:
            return self.estimate(problem, config, target) <= bound

        constraints, knobs = self.constraints(problem, target), self.knobs(problem, default)
        return Space(default, self.LEAST, knobs, constraints, self.heuristics(problem), promising)

    def features(self, problem: Problem, config: C, target: tvm.target.Target) -> dict[str, float]:
        """Return features for a cost model beside the knobs, such that workloads can be compared."""
        return {
            "clocks": self.estimate(problem, config, target),
            "threads": config.threads,
            "blocks": self.blocks(problem, config),
            **self.sizes(problem, config),
        }

    def resident_blocks(self, problem: Problem, config: C, gpu: Gpu) -> int:
        """Return the blocks that a multiprocessor has room for, by shared memory, registers and warps."""
        registers, shared = self.registers(problem, config), self.shared_bytes(problem, config)
        return resident_blocks(gpu, config.threads, registers, shared)


def resident_blocks(gpu: Gpu, threads: int, registers: int, shared_bytes: int) -> int:
    """Return the blocks of `threads` threads that a multiprocessor has room for, at least 1; a block takes whole warps.

    A thread has `registers` of 4 bytes, and a block `shared_bytes` of shared memory.
    """
    warps = ceil_div(threads, WARP)
    by_registers, by_shared = REGISTERS // (warps * WARP * registers), gpu.shared_bytes // (shared_bytes + BLOCK_BYTES)
    return max(1, min(by_shared, by_registers, gpu.warps // warps, gpu.blocks))


def tensor_core_obstacle(problem: Problem, target: tvm.target.Target) -> str | None:
    """Return why tensor cores do not compute a problem on a target: its precision, or the GPU; None where they do."""
    if problem.precision == "strict":
        return "is not for the precision strict"
    if "mma" not in tensor_instructions(target):
        return f"needs a GPU with tensor cores, sm_80 or later, not {arch_of(target)}"
    return None


def several_warps(config: Tiles) -> bool:
    """Return whether a block has 2 to 16 warps."""
    return 2 * WARP <= config.threads <= 16 * WARP
