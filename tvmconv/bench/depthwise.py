"""Depthwise kernels beside PyTorch and a copy of the same bytes: `python -m tvmconv.bench.depthwise SUITE ...`."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import click
import msgspec
import numpy as np

from .. import __version__
from ..cli.console import print_json, print_table
from ..workload import ConvWorkload
from .suites import load_suite, suite_names
from .timing import Timing, measure

OURS, PYTORCH, COPIES = "tvmconv", "pytorch", ("copy", "copy kernel")


@click.command()
@click.argument("suites", nargs=-1, required=True, type=click.Choice(suite_names()))
@click.option("--target", type=click.Choice(["llvm", "cuda"]), default="llvm", show_default=True)
@click.option(
    "--threads", type=click.IntRange(min=1), default=2, show_default=True, help="On a CPU, for all contenders alike."
)
@click.option("--batch", type=click.IntRange(min=1), help="Instead of the batch that the suite has.")
@click.option(
    "--rounds", type=click.IntRange(min=1), default=9, show_default=True, help="How often each contender is timed."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def main(suites: tuple[str, ...], target: str, threads: int, batch: int | None, rounds: int, as_json: bool) -> None:
    """Time suites of depthwise convolutions, tuned where a log that is shipped has them, beside PyTorch and a copy.

    Results are checked against the float64 reference first. PyTorch runs in strict float32 with cuDNN's own search for
    the fastest algorithm. The copies read and write as many bytes as the convolution has to: one is the device's own
    copy, which is slow for some sizes, the other a kernel of PyTorch; the ratio is to the faster one.
    """
    os.environ["TVM_NUM_THREADS"] = str(threads)  # read when TVM is loaded
    import torch

    torch.set_num_threads(threads)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    rows = []
    for suite in suites:
        for name, workload in load_suite(suite).items():
            changed = msgspec.structs.replace(workload, batch=batch or workload.batch)
            timings = measure(contenders(changed, target), target == "cuda", rounds, seconds=0.02)
            rows.append({"suite": suite, "name": name, "workload": str(changed), **_columns(timings)})
    machine = {**machine_facts(target), "threads": None if target == "cuda" else threads}
    if as_json:
        print_json({**machine, "rows": rows})
        return
    headers = ["suite", "name", *rows[0]["us"], "spread", "x pytorch", "x copy"]
    print_table(
        headers,
        [
            [row["suite"], row["name"], *row["us"].values(), row["spread"], row["speedup"], row["over_copy"]]
            for row in rows
        ],
    )
    speedups = [row["speedup"] for row in rows]
    click.echo(f"{machine}: geometric mean {np.exp(np.mean(np.log(speedups))):.2f} times as fast as PyTorch")


def contenders(workload: ConvWorkload, target: str) -> dict[str, Callable[[], object]]:
    """What is timed on a workload, on arrays that all share; our result has been checked."""
    import torch

    from ..operators import depthwise
    from ..testing import check_result, random_operands

    device = "cuda" if target == "cuda" else "cpu"
    operands = random_operands(workload)
    x, w = (torch.from_numpy(operands[name]).to(device) for name in ("x", "w"))
    options: dict[str, Any] = {"stride": workload.stride, "padding": workload.padding}
    check_result(workload, operands, depthwise(x, w, **options).cpu().numpy())

    top, left, bottom, right = workload.padding
    filters = w.reshape(workload.out_channels, 1, *workload.kernel)
    if (top, left) == (bottom, right):
        own_padding, padded = (top, left), x
    else:
        own_padding, padded = (0, 0), torch.nn.functional.pad(x, (left, right, top, bottom))
    half = torch.randn(-(-workload.bytes_moved // 2 // 512) * 128, device=device)
    other = torch.empty_like(half)
    return {
        OURS: lambda: depthwise(x, w, **options),
        PYTORCH: lambda: torch.nn.functional.conv2d(
            padded, filters, stride=workload.stride, padding=own_padding, groups=workload.groups
        ),
        "copy": lambda: other.copy_(half),
        "copy kernel": lambda: torch.mul(half, 1.0, out=other),
    }


def machine_facts(target: str) -> dict[str, str | None]:
    """What was measured on, and with which versions."""
    import torch
    import tvm

    on_gpu = target == "cuda"
    cpu = f"{platform.machine()}, {tvm.target.codegen.llvm_get_system_cpu()} to LLVM"
    return {
        "device": str(torch.cuda.get_device_name()) if on_gpu else cpu,
        "tvmconv": __version__,
        "tvm": str(tvm.__version__),
        "torch": str(torch.__version__),
        "cudnn": str(torch.backends.cudnn.version()) if on_gpu else None,
    }


def _columns(timings: dict[str, Timing]) -> dict[str, Any]:
    ours = timings[OURS]
    return {
        "us": {name: round(1e6 * timing.median, 2) for name, timing in timings.items()},
        "rounds": {name: asdict(timing) for name, timing in timings.items()},
        "spread": f"{1e6 * ours.low:.2f}-{1e6 * ours.high:.2f}",
        "speedup": round(timings[PYTORCH].median / ours.median, 2),
        "over_copy": round(ours.median / min(timings[copy].median for copy in COPIES), 2),
    }


if __name__ == "__main__":
    main()
