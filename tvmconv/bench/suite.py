"""Timing of a workload beside its peers, all of them checked first."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tvmconv.checking.operands import CHECKED_OUTPUTS, Sample, unwritten
from tvmconv.checking.pruning import operands_for
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.errors import CodeSizeError, WrongResultError
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.targets import backend_of

from . import choose
from .peers import LIMITS, default_peers, known_peers
from .peers.copies import Copy
from .peers.ours import Sparse, Tvmconv
from .peers.peer import Call, Operands, Peer
from .report import Row
from .timing import Timer, interleave, sets_beyond_cache, timer, use_threads_of_tvm

if TYPE_CHECKING:
    import tvm

SECONDS = 0.02
"""The seconds that a contender is timed for in each round."""

ROUNDINGS = 6
"""The number of roundings that an output is allowed.

They are those of x, of w and of the scale, and of the values before the scale, before the shift and before the store.
"""


@dataclass(frozen=True)
class How:
    """The options that say how a workload is measured, and as which problem."""

    rounds: int
    cold: bool = False
    """True for other arrays in each call, so that none is in a cache."""
    sparsity: float | None = None
    """The share of zeros in the weight, for tvmconv's sparse kernel; None for its dense one."""
    precision: str = DEFAULT
    """The precision of tvmconv."""

    def problem(self, workload: ConvWorkload) -> Problem:
        return Problem(workload, self.sparsity, self.precision)


def choose_peers(names: Sequence[str] | None, how: How) -> list[Peer]:
    """Return the peers of these names, or without names the default ones for the kind of weight."""
    chosen = default_peers(how.sparsity is not None) if names is None else names
    return list(choose(known_peers(how.precision), chosen, "peers").values())


def measure_rows(
    workloads: Mapping[tuple[str, str], ConvWorkload],
    target: tvm.target.Target,
    peers: Sequence[Peer],
    how: How,
    started: Callable[[str], None],
) -> Iterator[Row]:
    """Measure workloads one by one, whose keys are a suite and a name; `started` is told each before it begins.

    PyTorch and all other libraries have as many threads on a CPU as TVM.
    """
    use_threads_of_tvm(target)
    for (suite, name), workload in workloads.items():
        started(f"{suite} {name}: {how.problem(workload)}")
        yield measure_row(suite, name, workload, target, peers, how)


def measure_row(
    suite: str, name: str, workload: ConvWorkload, target: tvm.target.Target, peers: Sequence[Peer], how: How
) -> Row:
    """Measure a workload of a suite beside its peers and the copies, on arrays that all of them share.

    Raises `WrongResultError` where tvmconv is wrong. A peer that is wrong or fails is left out, and the row says why.
    """
    backend = backend_of(target)
    on_gpu, device = backend.on_gpu, backend.device_type
    problem = how.problem(workload)
    arrays = operands_for(problem)
    ours = Tvmconv(how.precision) if how.sparsity is None else Sparse()
    count = sets_beyond_cache(workload.bytes_moved, on_gpu) if how.cold else 1
    sets = [_tensors(arrays, device) for _ in range(count)]
    timers: dict[str, Timer] = {}
    check = _Check(arrays, device)
    skipped, failed = {}, {}
    for peer in (ours, *peers, *LIMITS):
        integers = workload.dtype in QUANTIZED and not peer.takes_integers
        if reason := "for floating-point numbers" if integers else peer.obstacle(workload, target):
            skipped[peer.name] = reason
            continue
        try:
            calls = peer.prepare(workload, target, sets)
            check(peer, workload, calls[0])
            timers[peer.name] = timer(calls, on_gpu, SECONDS)
        except AssertionError as error:
            if isinstance(peer, Tvmconv):
                raise WrongResultError(f"{peer.name} computes {workload} wrongly: {error}") from None
            failed[peer.name] = f"wrong: {error}"
        except CodeSizeError as error:
            skipped[peer.name] = str(error)
        except RuntimeError as error:
            if isinstance(peer, Tvmconv | Copy):
                raise
            failed[peer.name] = str(error).strip().partition("\n")[0]
    return Row(
        suite=suite,
        name=name,
        workload=str(problem),
        flops=workload.flops,
        bytes=workload.bytes_moved,
        selection=_reason(ours, problem, target) if ours.name in timers else None,
        times=interleave(timers, how.rounds),
        skipped=skipped,
        failed=failed,
        sparsity=how.sparsity,
    )


def _reason(ours: Tvmconv, problem: Problem, target: tvm.target.Target) -> str:
    selection = ours.operator.selection if isinstance(ours, Sparse) else select(problem, target)
    return selection.reason


def _tensors(arrays: dict[str, np.ndarray[Any, Any]], device: str) -> Operands:
    """Return the operands in memory that torch has allocated, aligned as every library wants it."""
    import torch  # noqa: F401, `to_torch` looks for it

    return {name: to_torch(array).to(device, copy=True) for name, array in arrays.items() if name != "output"}


class _Check:
    """Compares peers' results on the same arrays with a reference, which is computed once."""

    def __init__(self, arrays: dict[str, np.ndarray[Any, Any]], device: str) -> None:
        self._arrays, self._device = arrays, device
        self._samples: dict[Problem, Sample] = {}

    def __call__(self, peer: Peer, workload: ConvWorkload, call: Call) -> None:
        import torch

        computed = peer.computes(workload)
        if computed is None:
            return
        name = computed.output_storage.name
        dtype = getattr(torch, name)
        # Memory that a right result has just left would hide elements that are not written.
        torch.full(computed.output_shape, unwritten(name), dtype=dtype, device=self._device)
        problem = Problem(computed, precision=peer.precision)
        self._sample(problem).check(to_numpy(call().to(dtype).contiguous().cpu()), ROUNDINGS * peer.unit(workload))

    def _sample(self, problem: Problem) -> Sample:
        if problem not in self._samples:
            operands = {name: self._arrays[name] for name in problem.workload.operands}
            self._samples[problem] = Sample(problem, operands, np.random.default_rng(0), CHECKED_OUTPUTS)
        return self._samples[problem]
