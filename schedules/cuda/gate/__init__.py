"""Two layers on images of one pixel in one kernel for a GPU: the gate of squeeze and excitation.

A block has an image. Its warps compute the outputs of the first layer, each by lanes that have parts of a sum, and keep
them in shared memory; then each thread has neighbouring outputs of the second layer:

    for n in blocks:
        shared x[n]; wait
        for s in warps: h[s] = act(sum over lanes of x * w[s] + b[s]); wait
        for k in threads: y[n, k] = act(sum of h[s] * v[s, k] + c[k])

All sums are in float32. Every block reads both weights, so that large batches take two kernels instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tvm
from tvm.s_tir import Schedule

from tvmconv.compute import with_sizes
from tvmconv.compute.open_sizes import VARIABLES
from tvmconv.problem import FusedProblem, Problem
from tvmconv.problem.fused.gate import Gate
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets.devices import WARP, gpu_of

from ...template import Fused
from ..model import Counts, memory_bytes
from ..template import GpuTemplate
from .kernel import gate_kernel
from .reference import gate_reference

MAX_CHANNELS, MAX_SQUEEZED = 8192, 1024
"""The most channels, and the most channels between both layers: a block has them in float32 in its shared memory."""

THREADS = (128, 256, 512, 1024)
"""The numbers of threads of a block."""

REGISTERS = 48
"""The registers of a thread, by NVRTC for sm_90."""

FOR_A_PRODUCT, BEGINNING = 3.0, 100.0
"""The instructions of a thread for a product, most of them for its weight, and those that it begins with."""

IN_FLIGHT = 8
"""The weights of a thread that are in flight together."""


@dataclass(frozen=True)
class Config:
    """The knob."""

    threads: int
    """The threads of a block, whole warps."""


class FusedGate(GpuTemplate[Config]):
    """Gates of squeeze and excitation, with a block for each image."""

    LAYOUTS = Fused(Gate, gate_reference)
    OPEN_SIZES = ("batch",)
    LEAST = Config(threads=32)
    examples = tuple(
        FusedProblem(
            Gate(
                ConvWorkload.conv2d(
                    (2, channels, 1, 1), (squeezed, channels, 1, 1), dtype=dtype, shift=True, activation="silu"
                ),
                ConvWorkload.conv2d(
                    (2, squeezed, 1, 1), (channels, squeezed, 1, 1), dtype=dtype, shift=True, activation="sigmoid"
                ),
            )
        )
        for channels, squeezed, dtype in ((240, 10, "float32"), (75, 33, "bfloat16"))
    )

    def obstacle(self, problem: Problem, target: tvm.target.Target) -> str | None:
        """Take gates whose channels have room in the shared memory of a block."""
        gate = gate_of(problem)
        channels, squeezed = gate.first.in_channels, gate.first.out_channels
        if channels > MAX_CHANNELS or squeezed > MAX_SQUEEZED:
            return f"takes up to {MAX_CHANNELS} and {MAX_SQUEEZED} channels, not {channels} and {squeezed}"
        return None

    def registers(self, problem: Problem, config: Config) -> int:
        return REGISTERS

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        gate = gate_of(problem)
        return 4 * (gate.first.in_channels + gate.first.out_channels)

    def blocks(self, problem: Problem, config: Config) -> int:
        return gate_of(problem).first.batch

    def candidates(self, problem: Problem, target: tvm.target.Target) -> Iterator[Config]:
        return map(Config, THREADS)

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return {"threads": THREADS}

    def counts(self, problem: Problem, config: Config, target: tvm.target.Target) -> Counts:
        """Return the work of the kernel: each image's block reads both weights, from the L2 cache."""
        gate = gate_of(problem)
        first, second = gate.first, gate.second
        elements = first.in_channels * first.storage.itemsize + second.out_channels * second.storage.itemsize
        products = first.out_channels * (first.in_channels + second.out_channels) / config.threads
        issued = FOR_A_PRODUCT * products + BEGINNING
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=config.threads // WARP,
            issued=issued,
            moved=memory_bytes(gate, target),
            fetched=first.out_channels * elements,
            arrivals=2 + products / IN_FLIGHT,
            serial=issued,
        )

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        gate = gate_of(problem)
        return {
            "channels": gate.first.in_channels,
            "squeezed": gate.first.out_channels,
            "outputs": gate.second.out_channels,
        }

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {"many threads": Config(THREADS[0])}

    def schedule(self, problem: Problem, config: Config, target: tvm.target.Target) -> Schedule:
        gate = with_sizes(gate_of(problem), {name: VARIABLES[name] for name in problem.open_sizes})
        return Schedule(gate_kernel(gate, config.threads))


def gate_of(problem: Problem) -> Gate:
    """Return the workload of a problem of a gate."""
    assert isinstance(problem.workload, Gate)
    return problem.workload


template = FusedGate()
