"""Sparse kernels, cuDNN and cuSPARSE under Nsight Compute: table 5 and figure 10 of the sparse code-generation paper.

Three commands make the table:

    PROFILE="python benchmarks/nsight/sparse.py"
    ncu --csv --clock-control base --profile-from-start off --metrics $($PROFILE metrics) $PROFILE run > sparse.csv
    $PROFILE table sparse.csv
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path

from metrics import DURATION, ISSUE_SLOTS, L2, MEMORY, Kernel, Table, read_kernels, script, stalled

from tvmconv.cli.console import note
from tvmconv.problem.errors import InvalidArgumentError

SUITE, SPARSITY, BATCH = "sparse-paper", 0.9, 64

CONTENDERS = ("tvmconv", "pytorch", "im2col-spmm")
"""The contenders: tvmconv's sparse kernel, cuDNN in strict float32, and cuSPARSE with the unfolding before it."""

WARM_UP = 3
"""The number of calls that are not profiled: libraries look for their fastest algorithm in the first."""

MARK = "spin_kernel"
"""The kernel of torch that only waits; it stands before each contender of each operator."""

WAITING = "smsp__average_warp_latency_per_inst_issued.ratio"
"""The metric of the warps in a slot that issues, whatever they wait for."""


METRICS = (DURATION, ISSUE_SLOTS, L2, MEMORY, stalled("no_instruction"), WAITING)


def run() -> None:
    """Call each contender, a call of each between the start and the stop of the profiler."""
    import torch

    from tvmconv.bench.peers import known_peers
    from tvmconv.bench.peers.ours import Sparse
    from tvmconv.checking.pruning import operands_for
    from tvmconv.checking.suites import load_suite
    from tvmconv.problem import Problem
    from tvmconv.targets import device_of, resolve_target

    target = resolve_target("cuda")
    device_of(target)
    for name, workload in load_suite(SUITE, "cuda", BATCH).items():
        note(f"{name}: {workload}")
        arrays = operands_for(Problem(workload, SPARSITY))
        operands = {key: torch.from_numpy(array).cuda() for key, array in arrays.items() if key != "output"}
        for contender in CONTENDERS:
            peer = Sparse() if contender == "tvmconv" else known_peers()[contender]
            (call,) = peer.prepare(workload, target, [operands])
            for _ in range(WARM_UP):
                call()
            torch.cuda.synchronize()
            torch.cuda.profiler.start()
            torch.cuda._sleep(1)
            call()
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()


def table(path: Path) -> Table:
    """Return a row for each operator and contender."""
    from tvmconv.checking.suites import load_suite

    kernels = read_kernels(path)
    groups = [
        [values for _, values in group] for mark, group in groupby(kernels, lambda each: MARK in each[0]) if not mark
    ]
    names = list(load_suite(SUITE, "cuda", BATCH))
    if len(groups) != len(CONTENDERS) * len(names):
        raise InvalidArgumentError("file", str(path), f"{len(CONTENDERS) * len(names)} calls, not {len(groups)}")
    columns: dict[str, str | Callable[[Kernel], float]] = {
        "waiting for code": waiting_for_code,
        "issue slots": ISSUE_SLOTS,
        "L2": L2,
        "memory": MEMORY,
    }
    rows = []
    for index, name in enumerate(names):
        for contender, group in zip(CONTENDERS, groups[len(CONTENDERS) * index :], strict=False):
            shares = [over_time(group, metric) for metric in columns.values()]
            microseconds = sum(kernel[DURATION] for kernel in group) / 1e3
            rows.append(
                [name, contender, str(len(group)), f"{microseconds:.1f}", *(f"{share:.0f}%" for share in shares)]
            )
    return ["operator", "contender", "kernels", "µs", *columns], rows


def waiting_for_code(kernel: Kernel) -> float:
    """Return the percentage of the warps that wait for their next instruction to be fetched."""
    return 100 * kernel[stalled("no_instruction")] / kernel[WAITING]


def over_time(kernels: list[Kernel], metric: str | Callable[[Kernel], float]) -> float:
    """Return the mean of a call's kernels, each with the weight of its time."""
    values = [metric(kernel) if callable(metric) else kernel[metric] for kernel in kernels]
    times = [kernel[DURATION] for kernel in kernels]
    return sum(value * time for value, time in zip(values, times, strict=True)) / sum(times)


if __name__ == "__main__":
    script("Profile sparse kernels and what they compete with.", METRICS, run, table)()
