"""The kernels of networks on a GPU, and what the time is that is not of convolutions or products.

    python benchmarks/shares.py -o shares-h200.json                # all networks in float16, 32 images
    python benchmarks/shares.py --batch 1 resnet50 unet

All networks are built first, side by side, each in a process of its own. Times are those of kernels, in microseconds a
call, as CUDA's profiler has them, with kernels launched one by one; a function's kernels are taken together. Bytes are
those of all that a function that is neither a convolution nor a product reads and writes, each tensor once, and "copy"
is the time of a copy of as many.
"""

from __future__ import annotations

import argparse
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from math import prod
from statistics import median
from typing import Any

import torch
import tvm
from script import Row, built_until, copy_of, main, profile_of

from tvmconv import load
from tvmconv.bench.networks.models import NETWORKS, SIZE, SIZES
from tvmconv.bench.networks.weights import randomized
from tvmconv.network import Network, build, import_model
from tvmconv.network.runtime.session import IN_CAPTURE
from tvmconv.targets.threads import usable_cpus

CALLS = 10
"""The calls that are profiled."""
AT_ONCE = 3
"""The CPUs for each network that is built, whose kernels are compiled in several threads."""

KERNEL = re.compile(r"(.+)_kernel(_\d+)?")
"""The names of a function's kernels."""
PRODUCT = re.compile(r"tvmconv_|.*(conv|matmul)")
"""The names of functions of convolutions and products: tvmconv's, and those that are left to TVM."""


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network that is built in time."""
    end, cases = (
        time.perf_counter() + given.seconds,
        {each: (each, given.batch, given.precision) for each in given.names},
    )
    for name, path in built_until(end, given.jobs, built, cases):
        try:
            kernels = measured(load(path()), images(name, given.batch))
        except TimeoutError:
            print(f"{name}: the time was over", flush=True)
            continue
        yield {"name": name, "batch": given.batch, "precision": given.precision, "kernels": kernels}


def images(name: str, batch: int) -> torch.Tensor:
    size = SIZES.get(name, SIZE)
    return torch.randn(batch, 3, size, size, generator=torch.Generator().manual_seed(3))


def built(name: str, batch: int, precision: str, path: str) -> str:
    """Build a network in this process and write it to a file."""
    torch.set_num_threads(AT_ONCE)
    model = import_model(randomized(NETWORKS[name]), (images(name, batch),))
    build(model, "cuda", precision=precision).export(path)
    return path


def measured(network: Network, x: torch.Tensor) -> list[Row]:
    """Return the functions of a network with the times of their kernels, and those of copies, the longest first."""
    x = x.cuda()
    in_capture = network.machine.module.implements_function(IN_CAPTURE)
    launch = IN_CAPTURE if in_capture else "main"  # kernels are launched one by one
    calls, nbytes = functions(network, launch, x)
    network.release_memory()  # and with it the machine that is watched
    machine, times = network.machine, Counter[str]()
    for kernel, micros in profiled(lambda: machine[launch](x)):
        found = KERNEL.fullmatch(kernel)
        times[found[1] if found else kernel] += micros
    others = {nbytes[name] for name in times if name in nbytes and not PRODUCT.match(name)}
    copies = {size: sum(micros for _, micros in profiled(copy_of(size, "cuda"))) for size in others}
    rows = []
    for name, micros in times.most_common():
        row: Row = {"name": name, "calls": calls[name], "us": round(micros, 2)}
        if not PRODUCT.match(name):  # a function without bytes is CUDA's own copy
            size = nbytes.get(name)
            copy = micros if size is None else calls[name] * copies[size]
            row |= {"bytes": size, "copy_us": round(copy, 2)}
        rows.append(row)
    return rows


def functions(network: Network, launch: str, x: torch.Tensor) -> tuple[Counter[str], dict[str, int]]:
    """Return how often a network calls each of its functions, and the bytes of the tensors that each of these gets."""
    calls, nbytes = Counter[str](), dict[str, int]()

    def note(function: Any, name: str, is_before: bool, result: Any, *given: Any) -> int:
        if is_before and not name.startswith("vm."):
            tensors = {each.data_ptr(): each for each in given if isinstance(each, tvm.runtime.Tensor)}
            calls[name] += 1
            nbytes[name] = sum(prod(each.shape) * tvm.DataType(each.dtype).itemsize for each in tensors.values())
        return 0

    machine = network.machine
    machine.set_instrument(note)
    machine[launch](tvm.runtime.from_dlpack(x))
    return calls, nbytes


def profiled(call: Callable[[], Any]) -> list[tuple[str, float]]:
    """Return the names of a call's kernels, in their order, with the microseconds that each takes."""
    events = [each for each in profile_of(call, CALLS).events() if each.device_type == torch.autograd.DeviceType.CUDA]
    events.sort(key=lambda each: each.time_range.start)
    each_call = [events[number :: len(events) // CALLS] for number in range(len(events) // CALLS)]
    return [(same[0].name, median(each.time_range.elapsed_us() for each in same)) for same in each_call]


def text(row: Row) -> str:
    """Return a row in words, with the functions that are slow beside a copy."""
    others = [each for each in row["kernels"] if "bytes" in each]
    total = sum(each["us"] for each in row["kernels"])
    share = sum(each["us"] for each in others) / total
    lines = [f"{row['name']}: {total:.0f} us, {share:.1%} neither convolutions nor products"]
    for each in others:
        if (copies := each["us"] / each["copy_us"]) > 1.5:
            lines.append(f"    {each['us']:8.1f} us, {copies:5.2f} copies: {each['calls']} x {each['name'][:90]}")
    return "\n".join(lines)


if __name__ == "__main__":
    options = {"names": tuple(NETWORKS), "target": {"cuda": "cuda"}, "batch": 32, "precision": "float16"}
    main(__doc__, rows, text, **options, seconds=220.0, jobs=max(1, usable_cpus() // AT_ONCE))
