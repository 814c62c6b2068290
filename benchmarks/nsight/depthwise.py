"""The bounds of the depthwise kernels that are furthest from a copy: Nsight Compute profiles them, then a table tells.

Three commands make the table:

    PROFILE="python benchmarks/nsight/depthwise.py"
    ncu --csv --clock-control base -k regex:tvmconv --metrics $($PROFILE metrics) $PROFILE run > depthwise.csv
    $PROFILE table depthwise.csv
"""

from __future__ import annotations

from pathlib import Path

from metrics import (
    DURATION,
    INSTRUCTIONS,
    ISSUE_SLOTS,
    L2,
    MEMORY,
    MULTIPLY_ADDS,
    Table,
    read_kernels,
    script,
    stalled,
)

from tvmconv.cli.console import note
from tvmconv.problem.errors import InvalidArgumentError

SUITES = ("depthwise-tutorial", "depthwise-networks")

WORKLOADS = (
    ("float32", "t96-k5-m2"),
    ("float32", "k7-384x14"),
    ("float32", "t64"),
    ("float32", "t96"),
    ("float32", "mb-512x14"),
    ("float16", "mb-512x14"),
    ("float16", "mb-960x7"),
    ("float16", "k7-384x14"),
)

CALLS = 3
"""The number of calls of each kernel: the first ones find caches and clocks as they are, the last one is reported."""

SHARES = {
    "issue slots": ISSUE_SLOTS,
    "L2": L2,
    "memory": MEMORY,
    "warps active": "sm__warps_active.avg.pct_of_peak_sustained_active",
}
"""The columns of the table, in percent."""

WAVES = "launch__waves_per_multiprocessor"

STALLS = {
    "loads": ("long_scoreboard",),
    "shared memory": ("short_scoreboard", "mio_throttle"),
    "the multipliers": ("math_pipe_throttle",),
    "barriers": ("barrier",),
    "the queue of loads": ("lg_throttle",),
    "code": ("no_instruction",),
}
"""The reasons why warps wait, with Nsight's names of them."""

OTHERS = (
    DURATION,
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__inst_executed.avg.per_cycle_elapsed",
    "launch__registers_per_thread",
    "launch__grid_size",
    "launch__block_size",
)
"""The metrics beside those of the table."""


METRICS = (
    *(*SHARES.values(), INSTRUCTIONS, MULTIPLY_ADDS, WAVES),
    *(stalled(name) for names in STALLS.values() for name in names),
    *OTHERS,
)


def run() -> None:
    """Call each kernel, with the configuration that is tuned for it."""
    import tvm

    import tvmconv
    from tvmconv.checking.suites import load_suite
    from tvmconv.targets import device_of, resolve_target
    from tvmconv.testing import random_operands

    device = device_of(resolve_target("cuda"))
    for dtype, name in WORKLOADS:
        (workload,) = (found[name] for suite in SUITES if name in (found := load_suite(suite, "cuda", dtype=dtype)))
        operator = tvmconv.compile(workload, "cuda")
        note(f"{dtype} {name}: {operator.selection.reason}")
        operands = random_operands(workload)
        x, w = (tvm.runtime.tensor(operands[operand], device) for operand in ("x", "w"))
        for _ in range(CALLS):
            operator(x, w)
        device.sync()


def table(path: Path) -> Table:
    """Return a row for each workload, of its last call."""
    kernels = read_kernels(path)
    if len(kernels) != CALLS * len(WORKLOADS):
        raise InvalidArgumentError("file", str(path), f"{CALLS * len(WORKLOADS)} calls, not {len(kernels)}")
    told = [values for _, values in kernels[CALLS - 1 :: CALLS]]
    return ["workload", *SHARES, "multiply-adds", "waves", "most waiting"], [
        [
            f"{dtype} {name}",
            *(f"{found[metric]:.0f}%" for metric in SHARES.values()),
            f"{found[MULTIPLY_ADDS] / found[INSTRUCTIONS]:.0%}",
            f"{found[WAVES]:.2g}",
            waiting(found),
        ]
        for (dtype, name), found in zip(WORKLOADS, told, strict=True)
    ]


def waiting(found: dict[str, float]) -> str:
    """Name the reasons why most warps wait, or nearly as many, with their number in a slot that issues."""
    stalls = {what: sum(found[stalled(name)] for name in names) for what, names in STALLS.items()}
    most = max(stalls.values())
    return "; ".join(f"{what}, {warps:.1f}" for what, warps in stalls.items() if warps > 0.75 * most)


if __name__ == "__main__":
    script("Profile depthwise kernels.", METRICS, run, table)()
