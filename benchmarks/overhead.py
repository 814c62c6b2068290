"""The cost of a call from Python: a tiny convolution, called in every way there is, beside PyTorch.

    python benchmarks/overhead.py                  # on the CPU, with arrays of torch and of NumPy
    python benchmarks/overhead.py --target cuda    # the time is until the call returns

A depthwise convolution of 64 outputs takes a fraction of a microsecond. It is called as a function, as a compiled
operator and as a network, with and without `out`; "the kernel itself" is a call of TVM's function with nothing around
it. Results are compared with float64 first; all calls with arrays of a kind take turns.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import numpy as np
import torch
from script import Row, begin, main

from tvmconv.bench.timing import Call, Timer, interleave, timer
from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.network import build, import_model
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime import convolving, operators

WORKLOAD = ConvWorkload.depthwise((1, 4, 4, 4), (4, 1, 3, 3), padding=1)
SECONDS = 0.02
"""The seconds for which a call is repeated in each round."""


def calls_of(kind: str, arrays: dict[str, Any], target: Any, device: str) -> dict[str, Call]:
    """Return the ways to call with arrays of a kind, each of which returns its result."""
    tensors = {name: torch.from_numpy(array).to(device, copy=True) for name, array in arrays.items()}
    given = tensors if kind == "torch" else arrays
    operands, output, how = (given["x"], given["w"]), given["output"], {"padding": 1, "groups": WORKLOAD.groups}
    module = torch.nn.Conv2d(4, 4, WORKLOAD.kernel, padding=1, groups=WORKLOAD.groups, bias=False).eval()
    module.load_state_dict({"weight": tensors["w"].cpu()})
    network = build(import_model(module, (tensors["x"].cpu(),)), target)
    operator, depthwise = operators.compile(WORKLOAD, target), partial(convolving.depthwise, *operands, padding=1)
    kernel = build_kernel(Problem(WORKLOAD), select(Problem(WORKLOAD), target), target).executable[KERNEL_NAME]
    return {
        **({"torch.conv2d": partial(torch.conv2d, *operands, **how)} if kind == "torch" else {}),
        "tvmconv.depthwise": depthwise,
        "tvmconv.depthwise, out=": partial(depthwise, out=output),
        "operator": partial(operator, *operands),
        "operator, out=": partial(operator, *operands, out=output),
        "network": partial(network, given["x"]),
        "the kernel itself": partial(_returning, output, partial(kernel, *operands, output)),
    }


def _returning(output: Any, call: Callable[[], object]) -> Any:
    call()
    return output


def timer_of(call: Call, on_gpu: bool) -> Timer:
    """Return a timer of the call until it returns. A GPU is idle when the time begins, and quicker than the calls."""
    sample = timer([call], on_gpu=False, seconds=SECONDS)

    def sample_of_idle_gpu() -> float:
        torch.cuda.synchronize()
        return sample()

    return sample_of_idle_gpu if on_gpu else sample


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each way to call and each kind of arrays; PyTorch takes tensors alone."""
    (target, device), arrays = begin(given.target), random_operands(WORKLOAD)
    on_gpu = device == "cuda"
    for kind in ("torch",) if on_gpu else ("torch", "numpy"):
        calls = calls_of(kind, arrays, target, device)
        for call in calls.values():
            result: Any = call()
            check_result(WORKLOAD, arrays, result if isinstance(result, np.ndarray) else result.cpu().numpy())
        timers = {name: timer_of(call, on_gpu) for name, call in calls.items()}
        for name, timing in interleave(timers, given.rounds).items():
            yield {"name": name, "arrays": kind, "time": msgspec.to_builtins(timing)}


if __name__ == "__main__":
    main(__doc__, rows, target="llvm", rounds=25)
