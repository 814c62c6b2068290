"""The limits of a device: the bytes that its memory moves in a second, and its rate of multiply-adds in float32."""

from __future__ import annotations

from functools import partial

import numpy as np
import tvm
from tvm.script import tirx as T  # noqa: N812
from tvm.tirx import PrimFunc

from tvmconv.lowering import KERNEL_NAME, build
from tvmconv.targets import backend_of, cpu_of

from .peers import LIMITS
from .report import Roofs
from .timing import Call, measure, use_threads_of_tvm

COPIED_BYTES = 2**30
"""The bytes that a copy reads and writes: many times those of any cache."""

STEPS = 2**18
"""The multiply-adds of each sum in registers: all sums take about a millisecond."""

SPARE = 4
"""The sums in addition to those that keep all units busy, as latencies differ: 12 of AVX2's 16 registers hold sums."""

SECONDS, ROUNDS = 0.02, 5
"""The seconds of each round of a measurement, and their number, of which the fastest counts."""


def measure_roofs(target: tvm.target.Target) -> Roofs:
    """Return the bandwidth of a large copy, and the rate of a large matrix product or of multiply-adds in registers.

    PyTorch copies with as many threads on a CPU as TVM has. A limit is the best of the rounds.
    """
    use_threads_of_tvm(target)
    backend = backend_of(target)
    work, rate = _product(backend.gemm_size, backend.device_type) if backend.gemm_size else _multiply_adds(target)
    calls: dict[str, Call] = {limit.name: limit.call(COPIED_BYTES, backend.device_type) for limit in LIMITS}
    timings = measure({**calls, "rate": rate}, backend.on_gpu, ROUNDS, SECONDS)
    copy = min(timings[name].low for name in calls)
    return Roofs(bandwidth=COPIED_BYTES / copy, flops=work / timings["rate"].low)


def _product(size: int, device: str) -> tuple[int, Call]:
    """Return the operations of a product of square matrices, and a call that computes it."""
    import torch

    matrix = torch.randn(size, size, device=device)
    return 2 * size**3, lambda: matrix @ matrix


def _multiply_adds(target: tvm.target.Target) -> tuple[int, Call]:
    """Return the operations of a kernel that does nothing but multiply and add in registers, and a call of it.

    So the rate depends on the lanes, units and clock of those cores that kernels run on, even if these differ.
    """
    kernel = build(tvm.IRModule({KERNEL_NAME: multiply_adds(target)}), target)
    factor, results = (np.full(shape, 0.5, "float32") for shape in shapes(target))
    call = partial(kernel[KERNEL_NAME], tvm.runtime.tensor(factor), tvm.runtime.tensor(results))
    return 2 * STEPS * results.size, call


def shapes(target: tvm.target.Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the operands of `multiply_adds`."""
    cpu = cpu_of(target)
    sums = cpu.fma_units * cpu.fma_latency + SPARE  # each waits for its last multiply-add
    return (2, cpu.lanes), (int(target.attrs["num-cores"]), sums, cpu.lanes)


def multiply_adds(target: tvm.target.Target) -> PrimFunc:
    """Return a function of a factor beside a summand, and of the sums in which each thread adds to products in turn.

    Each sum follows from the one before, `y = y * factor + summand`, so that no compiler leaves any out.
    """
    _, (threads, sums, lanes) = shapes(target)

    @T.prim_func(s_tir=True)  # type: ignore[untyped-decorator]  # TVM has no types for it
    def function(a: T.handle, b: T.handle) -> None:
        A = T.match_buffer(a, (2, lanes), "float32")  # noqa: N806
        B = T.match_buffer(b, (threads, sums, lanes), "float32")  # noqa: N806
        for t in T.parallel(threads):
            with T.sblock("thread"):
                v = T.axis.spatial(threads, t)
                kept = T.sblock_alloc_buffer((sums, lanes), "float32")
                for i in T.unroll(sums):
                    for lane in T.vectorized(lanes):
                        kept[i, lane] = B[v, i, lane]
                for _ in T.serial(STEPS):
                    for i in T.unroll(sums):
                        for lane in T.vectorized(lanes):
                            kept[i, lane] = kept[i, lane] * A[0, lane] + A[1, lane]
                for i in T.unroll(sums):
                    for lane in T.vectorized(lanes):
                        B[v, i, lane] = kept[i, lane]

    return function.with_attr("global_symbol", KERNEL_NAME)
