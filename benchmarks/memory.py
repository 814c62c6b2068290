"""The memory that convolutions take on a GPU beside their operands and output: by formula, and measured.

    python benchmarks/memory.py im2win-thesis --batch 128 -o memory-h200.json
    python benchmarks/memory.py im2win-thesis --peers tvmconv-im2win,pytorch,im2col-gemm

The formulas are those of the im2win thesis, chapter 2.3, in the bytes of the workload's dtype. The measured memory is
the most that a call has from torch's allocator at once, without its output: tvmconv, cuDNN and PyTorch take their
workspaces there. Memory that was taken once for all calls, such as the 32 MiB of cuBLAS, and memory that TVM's own
kernels take are not counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from script import Row, main

from tvmconv.bench.peers.ours import Tvmconv
from tvmconv.bench.peers.peer import Peer
from tvmconv.bench.suite import How, choose_peers
from tvmconv.checking.operands import random_operands
from tvmconv.checking.suites import load_suite
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime.arrays import to_torch
from tvmconv.targets import resolve_target


def im2win_bytes(workload: ConvWorkload) -> int:
    """Return the bytes of im2win's windows: for each output row, the R input rows that it reads, padding included.

    N * C * Ho * R * W elements; with R equal to the stride and no padding as many as the input has.
    """
    rows, columns = workload.output_size[0] * workload.kernel[0], workload.padded_input[1]
    return workload.itemsize * workload.batch * workload.in_channels * rows * columns


def im2col_bytes(workload: ConvWorkload) -> int:
    """Return the bytes of im2col's matrix: for each output, the R * S elements that it reads of each channel.

    N * C * Ho * Wo * R * S elements.
    """
    taps = prod(workload.output_size) * prod(workload.kernel)
    return workload.itemsize * workload.batch * workload.in_channels * taps


FORMULAS: dict[str, Callable[[ConvWorkload], int]] = {
    "direct": lambda workload: 0, "im2win": im2win_bytes, "im2col": im2col_bytes
}  # fmt: skip


def workspace(call: Callable[[], Any]) -> int:
    """Return the most bytes that a call, which is not the first one, has from torch's allocator at once."""
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    output = call()
    torch.cuda.synchronize()
    requested = torch.cuda.memory_stats()
    # Now the memory is as before, plus the output: the call has given back its workspace.
    taken = int(requested["requested_bytes.all.peak"]) - int(requested["requested_bytes.all.current"])
    del output
    return taken


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each workload of the suites."""
    target = resolve_target(given.target)
    peers: list[Peer] = [Tvmconv(), *choose_peers(given.peers or None, How(1))]
    for suite in given.suites:
        for name, workload in load_suite(suite, target.kind.name, given.batch).items():
            arrays, measured, failed = random_operands(workload), dict[str, int](), dict[str, str]()
            del arrays["output"]
            tensors = {each: to_torch(array).cuda() for each, array in arrays.items()}
            for peer in (each for each in peers if each.obstacle(workload, target) is None):
                try:
                    measured[peer.name] = workspace(*peer.prepare(workload, target, [tensors]))
                except RuntimeError as error:
                    failed[peer.name] = str(error).strip().partition("\n")[0]
            memory = {"formulas": {each: of(workload) for each, of in FORMULAS.items()}, "measured": measured}
            about = {"suite": suite, "name": name, "workload": str(workload), "bytes": workload.bytes_moved}
            yield {**about, "memory": memory, "failed": failed}


def text(row: Row) -> str:
    """Return a row in words, in megabytes; * is by formula."""
    memory = {f"{name}*": each for name, each in row["memory"]["formulas"].items()} | row["memory"]["measured"]
    told = [f"{name} failed: {why}" for name, why in row["failed"].items()]
    return f"{row['name']}: " + ", ".join([f"{name} {each / 1e6:.3g} MB" for name, each in memory.items()] + told)


if __name__ == "__main__":
    main(__doc__, rows, text, suites=(), target={"cuda": "cuda"}, batch=int, peers=[])
