"""A template for convolutions on CUDA: level 4 of docs/levels, with knobs instead of numbers.

    python examples/convolution_template.py

Prints the template's estimate beside those of the other templates, checks its results, on the CPU by its serial twin
where there is no GPU, and prints the registers of its machine code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from tvm import te
from tvm.s_tir import Schedule
from tvm.target import Target

import tvmconv
from tvmconv import ConvWorkload, compute, dispatch
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.model import Counts, memory_bytes
from tvmconv.schedules.cuda.template import GpuTemplate, Tests
from tvmconv.schedules.space import ceil_div, named
from tvmconv.schedules.template import Layouts
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.targets.devices import WARP, gpu_of
from tvmconv.testing.conformance import How, check
from tvmconv.testing.trials import examples

WORKLOAD = ConvWorkload.conv2d((32, 64, 56, 56), (64, 64, 3, 3), padding=1)
"""The convolution of docs/levels."""

CHANNELS, COLUMNS = 4, 4
"""A virtual thread computes 4 adjacent output channels by 4 adjacent columns."""

COPYING, STORING, BEGINNING = 20.0, 6.0, 100.0
"""The instructions of a thread: for each element that it copies, for each output that it stores, and at its start."""


KNOBS = {
    "vthreads_k": (1, 2),
    "vthreads_y": (1, 2),
    "threads_k": (4, 8, 16),
    "threads_y": (1, 2, 4, 8),
    "threads_x": (2, 4, 7, 8),
    "block_c": (1, 2, 3, 4, 8),
}
"""The values of each knob in the space."""


@dataclass(frozen=True)
class Config:
    """The knobs."""

    vthreads_k: int
    """The virtual threads along output channels."""
    vthreads_y: int
    """The virtual threads along rows."""
    threads_k: int
    """The threads along output channels; a thread has `CHANNELS` of each virtual thread."""
    threads_y: int
    """The threads along rows; a thread has one row of each virtual thread."""
    threads_x: int
    """The threads along columns; a thread has `COLUMNS`."""
    block_c: int
    """The input channels of a chunk in shared memory."""

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.threads_k * self.threads_y * self.threads_x

    @property
    def outputs(self) -> int:
        """The outputs of a thread."""
        return self.vthreads_k * CHANNELS * self.vthreads_y * COLUMNS

    @property
    def tile(self) -> tuple[int, int, int]:
        """The output channels, rows and columns of a block."""
        return self.vthreads_k * self.threads_k * CHANNELS, self.vthreads_y * self.threads_y, self.threads_x * COLUMNS


def staged(workload: ConvWorkload, config: Config) -> tuple[int, int]:
    """Return the numbers of elements of x and of w that a block has in shared memory."""
    channels, *block = config.tile
    window = prod(workload.read_by(block))
    return config.block_c * window, config.block_c * prod(workload.kernel) * channels


class VirtualThreads(GpuTemplate[Config]):
    """Dense convolutions in one group on CUDA cores, through shared memory."""

    LAYOUTS = Layouts(dtypes=("float32",))  # x in NCHW, w in KCRS
    LEAST = Config(1, 1, 1, 1, 1, 1)
    MAX_UNROLLED = 4096  # the most instructions without a loop, which `instructions` counts
    examples = (
        Problem(ConvWorkload.conv2d((1, 16, 8, 28), (64, 16, 3, 3), padding=1, shift=True, activation="relu")),
        Problem(ConvWorkload.conv2d((2, 6, 13, 11), (20, 6, 5, 3), stride=2, dilation=(1, 2), residual=True)),
    )

    # 1. The problems that it takes; layouts and types are in LAYOUTS

    def obstacle(self, problem: Problem, target: Target) -> str | None:
        """Take dense convolutions in one group, with windows that fit shared memory and can be unrolled."""
        if not problem.is_dense or problem.workload.groups > 1:
            return "is for dense convolutions in one group"
        if next(self.legal(self.candidates(problem, target), problem, target), None) is None:
            return "has no configuration for a window this large"
        return None

    # 2. What a block takes of the GPU: constraints are made of these

    def registers(self, problem: Problem, config: Config) -> int:
        """Return the registers of a thread, about: sums, a vector of each factor, and addresses."""
        return config.outputs + config.vthreads_k * CHANNELS + config.vthreads_y * COLUMNS + 40

    def shared_bytes(self, problem: Problem, config: Config) -> int:
        return 4 * sum(staged(problem.workload, config))

    def max_shared_bytes(self, target: Target) -> int:
        """Return the limit of static buffers, which TVM makes of the scope "shared"."""
        return int(target.attrs["max_shared_memory_per_block"])

    def blocks(self, problem: Problem, config: Config) -> int:
        extents = problem.workload.out_channels, *problem.workload.output_size
        return problem.workload.batch * prod(map(ceil_div, extents, config.tile))

    def instructions(self, problem: Problem, config: Config) -> int:
        return prod(problem.workload.kernel) * config.outputs

    def rules(self, problem: Problem) -> Tests[Config]:
        channels = problem.workload.in_channels

        def whole_chunks(config: Config) -> bool:
            return channels % config.block_c == 0

        return named(whole_chunks)

    # 3. The space of the tuner; the default has the least estimate in it

    def knobs(self, problem: Problem, default: Config) -> Mapping[str, tuple[Any, ...]]:
        return KNOBS

    def candidates(self, problem: Problem, target: Target) -> Iterator[Config]:
        return (Config(*values) for values in product(*KNOBS.values()))

    def heuristics(self, problem: Problem) -> Tests[Config]:
        def whole_warps(config: Config) -> bool:
            return config.threads % WARP == 0

        return named(whole_warps)

    # 4. The estimate: the work of the kernel, of which the model of GPUs makes clock cycles

    def counts(self, problem: Problem, config: Config, target: Target) -> Counts:
        workload = problem.workload
        chunks, terms = workload.in_channels // config.block_c, config.block_c * prod(workload.kernel)
        warps = ceil_div(config.threads, WARP)
        loads = terms * (config.vthreads_k + config.vthreads_y * COLUMNS)
        copies = sum(ceil_div(elements, config.threads) for elements in staged(workload, config))
        issued = chunks * (terms * config.outputs + loads + COPYING * copies) + STORING * config.outputs + BEGINNING
        return Counts(
            blocks=self.blocks(problem, config),
            resident=self.resident_blocks(problem, config, gpu_of(target)),
            warps=warps,
            issued=issued,
            moved=memory_bytes(workload, target),
            fetched=4.0 * (chunks * sum(staged(workload, config)) + prod(config.tile)),
            accessed=warps * chunks * (loads + copies),
            arrivals=1 + 2 * chunks,
            serial=issued,
        )

    # 5. What the cost model of the tuner learns from, and what an ablation leaves out

    def sizes(self, problem: Problem, config: Config) -> Mapping[str, float]:
        return {"outputs": config.outputs, "shared_bytes": self.shared_bytes(problem, config)}

    def ablations(self, config: Config) -> Mapping[str, Config]:
        return {"virtual threads": replace(config, vthreads_k=1, vthreads_y=1)}

    # 6. The schedule

    def schedule(self, problem: Problem, config: Config, target: Target) -> Schedule:
        sch = Schedule(te.create_prim_func(compute.direct(problem.workload, config.tile)))
        pad, weight, sums, output = (sch.get_sblock(name) for name in ("pad", "packed", "direct", "output"))

        # Blocks, virtual threads (strided), threads, then what a thread owns
        n, k, y, x = sch.get_loops(output)
        bk, vk, tk, ki = sch.split(k, [None, config.vthreads_k, config.threads_k, CHANNELS])
        by, vy, ty = sch.split(y, [None, config.vthreads_y, config.threads_y])
        bx, tx, xi = sch.split(x, [None, config.threads_x, COLUMNS])
        sch.reorder(n, by, bx, bk, vk, vy, tk, ty, tx, ki, xi)
        sch.bind(sch.fuse(n, by, bx, bk), "blockIdx.x")
        sch.bind(vk, "vthread.y")
        sch.bind(vy, "vthread.x")
        thread = sch.fuse(tk, ty, tx)
        sch.bind(thread, "threadIdx.x")
        sch.unroll(ki)
        sch.unroll(xi)

        # Sums in registers, chunk by chunk
        sch.compute_at(sums, thread, preserve_unit_loops=True)
        sch.set_scope(sums, 0, "local")
        *_, k, y, x, c, r, s = sch.get_loops(sums)
        chunk, ci = sch.split(c, [None, config.block_c])
        sch.reorder(chunk, ci, r, s, k, y, x)

        # Each chunk in shared memory
        for stage in (pad, weight):
            sch.set_scope(stage, 0, "shared")  # before compute_at, which then copies what all threads read
            sch.compute_at(stage, chunk, preserve_unit_loops=True)
            dimensions = len(sch.get(stage).iter_vars)
            _, copying = sch.split(sch.fuse(*sch.get_loops(stage)[-dimensions:]), [None, config.threads])
            sch.bind(copying, "threadIdx.x")

        init = sch.decompose_reduction(sums, chunk)
        for loop in (r, s, k, y, x, *sch.get_loops(init)[-3:]):
            sch.unroll(loop)
        return sch


def main() -> None:
    """Register the template, compare estimates, check results, and compile the kernel."""
    target, problem = resolve_target("cuda"), Problem(WORKLOAD, precision="strict")
    dispatch.register("cuda/vthreads", VirtualThreads())
    for algorithm in dispatch.algorithms_for(problem, target):
        selection = dispatch.select(problem, target, algorithm=algorithm)
        clocks = selection.template.estimate(problem, selection.config, target)
        print(f"{selection.name}: {clocks:,.0f} clock cycles by its estimate")

    for trial in examples(target, algorithm="vthreads"):
        check(How(str(target), twin=not has_gpu(), algorithm="vthreads"), trial)
        print(f"right: {trial.problem}")

    operator = tvmconv.compile(WORKLOAD, target, algorithm="vthreads")
    print(operator.selection.config)
    for kernel in operator.resources():
        print(f"{kernel.registers} registers, {kernel.spill_store_bytes} bytes spilled, {kernel.shared_bytes} shared")


if __name__ == "__main__":
    main()
