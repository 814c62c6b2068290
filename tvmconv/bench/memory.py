"""The memory that convolutions take beside their operands and output: by formula, and measured.

The formulas are those of the im2win thesis, chapter 2.3, in the bytes of the workload's dtype. The measured memory is
all that a library takes: data in another layout, scratch memory, weights in another order.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tvmconv.problem.workload import ConvWorkload
from tvmconv.support import system
from tvmconv.support.process import Process

from .peers.peer import Call, Peer

if TYPE_CHECKING:
    import tvm

STATUS, CLEAR_REFS = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"


class Memory(msgspec.Struct, frozen=True):
    """The memory beside operands and output, in bytes."""

    formulas: dict[str, int]
    """The bytes that each algorithm expands the input to, by formula."""
    measured: dict[str, int]
    """The bytes that each contender takes."""


def direct_bytes(workload: ConvWorkload) -> int:
    """Return 0: the direct algorithm reads the input where it is."""
    return 0


def im2win_bytes(workload: ConvWorkload) -> int:
    """Return the bytes of im2win's windows: for each output row, the R input rows that it reads.

    The rows have the whole padded width. N * C * Ho * R * W elements; with R equal to the stride and no padding as many
    as the input has.
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
    "direct": direct_bytes,
    "im2win": im2win_bytes,
    "im2col": im2col_bytes,
}


def can_measure(on_gpu: bool) -> bool:
    """Return whether the memory of a call can be measured here: on a GPU it can, on a CPU with Linux alone."""
    return on_gpu or CLEAR_REFS.exists()


def workspace_on_gpu(call: Call) -> int:
    """Return the most bytes that a call has from torch's allocator at once, without its output.

    The call is not the first one. tvmconv, cuDNN and all of PyTorch take their workspaces there; memory that was taken
    once for all calls, such as the 32 MiB of cuBLAS, and memory that TVM's own kernels take are not counted.
    """
    import torch

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


def workspace_on_cpu(peer: Peer, workload: ConvWorkload, target: tvm.target.Target) -> int:
    """Return the most bytes that the first call adds to a process's resident memory, without its output.

    The process is a new one, in which no pool has pages yet that would hide the growth. The library has computed
    something tiny before, so that its code is loaded. Memory that a library prepares once for all calls does not count.
    Raises RuntimeError where the library fails.
    """
    import torch

    arguments = peer, workload, str(target), torch.get_num_threads()
    with Process(_report, *arguments, context=_server()) as process:
        try:
            answer = process.answer()
        except ChildProcessError:
            answer = "the process died"
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return int(answer)


@cache
def _server() -> multiprocessing.context.ForkServerContext:
    """Return the server that forks such processes: it has imported all modules but has no threads yet."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tvmconv.bench.suite", "tvmconv.runtime.operators"])
    return context


def _report(peer: Peer, workload: ConvWorkload, target: str, threads: int) -> int | str:
    """Return the memory that a peer's first call takes, or an error; this is all that such a process does."""
    import torch

    from tvmconv.problem.errors import TvmconvError
    from tvmconv.targets import resolve_target

    torch.set_num_threads(threads)
    try:
        _prepared(peer, tiny(workload), resolve_target(target))()
        call = _prepared(peer, workload, resolve_target(target))
        return _growth(call)
    except (RuntimeError, TvmconvError) as error:
        return str(error).strip().partition("\n")[0]


def _prepared(peer: Peer, workload: ConvWorkload, target: tvm.target.Target) -> Call:
    import torch

    from tvmconv.checking.operands import random_operands

    *inputs, _ = workload.operands
    arrays = random_operands(workload)
    calls = peer.prepare(workload, target, [{name: torch.from_numpy(arrays[name]).clone() for name in inputs}])
    return calls[0]


def _growth(call: Call) -> int:
    gc.collect()
    system.give_back_free_memory()  # it would hide what the call takes
    CLEAR_REFS.write_text(RESET_PEAK)
    before = _status("VmRSS")
    output = call()
    return max(0, _status("VmHWM") - before - int(output.nbytes))


def _status(name: str) -> int:
    """Return the bytes in a line of the process's status."""
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return 1024 * int(line.split()[1])


def tiny(workload: ConvWorkload) -> ConvWorkload:
    """Return a convolution of the same form with next to no data, for which the same code is loaded."""
    groups = 1 if workload.groups == 1 else 2
    channels = groups if workload.is_depthwise else 2 * groups
    height, width = (max(window, 8) for window in workload.window)
    return msgspec.structs.replace(
        workload, batch=1, in_channels=channels, out_channels=channels, groups=groups, height=height, width=width
    )
