"""The cost of a call: a tiny convolution, called from Python in every way there is, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm

from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.network import build, import_model
from tvmconv.problem import Problem
from tvmconv.problem.errors import WrongResultError
from tvmconv.problem.workload import ConvWorkload
from tvmconv.runtime import convolving, operators
from tvmconv.targets import backend_of

from .timing import Call, Timer, Timing, interleave, timer, use_threads_of_tvm

WORKLOAD = ConvWorkload.depthwise((1, 4, 4, 4), (4, 1, 3, 3), padding=1)
"""A workload so small that its arithmetic takes a fraction of a microsecond."""

SECONDS = 0.02
"""The seconds for which a call is repeated in each round."""

PYTORCH = "torch.conv2d"
KERNEL = "the kernel itself"
"""The name of the call of the kernel alone, as TVM makes it, with arrays that need no conversion.

Only the kernel checks anything, and nothing is allocated.
"""


@dataclass(frozen=True)
class Way:
    """A way to call the convolution, and the time of a call."""

    name: str
    arrays: str
    """The kind of arrays that it gets: "numpy" or "torch"."""
    time: Timing
    """The time of a call; on a GPU until it returns, while the GPU's work goes on."""


def measure_overhead(target: tvm.target.Target, rounds: int) -> list[Way]:
    """Time the ways to call `WORKLOAD`, PyTorch's first; they take turns.

    Results are compared with the float64 reference first: raises `WrongResultError` for one that is wrong.
    """
    use_threads_of_tvm(target)
    on_gpu = backend_of(target).on_gpu
    arrays = random_operands(WORKLOAD)
    calls = _calls(arrays, target)
    for (name, kind), call in calls.items():
        try:
            check_result(WORKLOAD, arrays, _on_host(call()))
        except AssertionError as error:
            raise WrongResultError(f"{name} of arrays of {kind} computes {WORKLOAD} wrongly: {error}") from None
    keys = {" ".join(key): key for key in calls}
    times = interleave({text: _timer(calls[key], on_gpu) for text, key in keys.items()}, rounds)
    return [Way(*key, times[text]) for text, key in keys.items()]


def _calls(arrays: dict[str, Any], target: tvm.target.Target) -> dict[tuple[str, str], Call]:
    """Return the ways to call, by name and kind of arrays; each call returns its result."""
    import torch

    torch.backends.cudnn.allow_tf32 = False
    backend = backend_of(target)
    tensors = {name: torch.from_numpy(array).to(backend.device_type, copy=True) for name, array in arrays.items()}
    x, w = tensors["x"], tensors["w"]
    channels = WORKLOAD.in_channels, WORKLOAD.out_channels
    module = torch.nn.Conv2d(*channels, WORKLOAD.kernel, padding=1, groups=WORKLOAD.groups, bias=False)
    module.load_state_dict({"weight": w.cpu()})
    network = build(import_model(module.eval(), (x.cpu(),)), target)
    operator = operators.compile(WORKLOAD, target)
    kernel = build_kernel(Problem(WORKLOAD), select(Problem(WORKLOAD), target), target).executable[KERNEL_NAME]

    calls: dict[tuple[str, str], Call] = {
        (PYTORCH, "torch"): partial(torch.conv2d, x, w, padding=1, groups=WORKLOAD.groups)
    }
    for kind, given in {"torch": tensors, **({} if backend.on_gpu else {"numpy": arrays})}.items():
        operands, output = (given["x"], given["w"]), given["output"]
        depthwise = partial(convolving.depthwise, *operands, padding=1)
        calls |= {
            ("tvmconv.depthwise", kind): depthwise,
            ("tvmconv.depthwise, out=", kind): partial(depthwise, out=output),
            ("operator", kind): partial(operator, *operands),
            ("operator, out=", kind): partial(operator, *operands, out=output),
            ("network", kind): partial(network, given["x"]),
            (KERNEL, kind): partial(_returning, output, partial(kernel, *operands, output)),
        }
    return calls


def _returning(output: Any, call: Callable[[], object]) -> Any:
    call()
    return output


def _timer(call: Call, on_gpu: bool) -> Timer:
    """Return a timer of the call until it returns. A GPU is idle when the time begins, and quicker than the calls."""
    sample = timer([call], on_gpu=False, seconds=SECONDS)
    if not on_gpu:
        return sample
    import torch

    def sample_of_idle_gpu() -> float:
        torch.cuda.synchronize()
        return sample()

    return sample_of_idle_gpu


def _on_host(result: Any) -> np.ndarray[Any, Any]:
    return result if isinstance(result, np.ndarray) else result.cpu().numpy()
