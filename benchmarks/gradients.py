"""Depthwise convolutions and their gradients beside PyTorch's, and beside copies of what they read and write.

    python benchmarks/gradients.py -o gradients.json                             # on the CPU
    python benchmarks/gradients.py --target cuda --cold -o gradients-h100.json   # on a GPU
    python benchmarks/gradients.py --suites depthwise-networks --dtype float16 --target cuda --limit 300
    python benchmarks/gradients.py --dtype float16 --order channels_last --target cuda --cold

The workloads are those of the suites whose names begin with "depthwise". For each, "forward" is the convolution,
"input" and "weight" are its gradients: times are of eager calls on a CPU, and of replays of a CUDA graph on a GPU; with
`--cold` no call finds its tensors in a cache. `--order` is that of the input, of the output and of their gradients in
memory. Results are first compared with PyTorch's in float64: "error" is the largest difference, as a share of the
largest number. A row is written as soon as it is measured; none begins after the limit, in seconds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec
import torch
from script import ORDERS, Row, copy_of, errors_of, main

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.bench.timing import interleave, sets_beyond_cache, timer, use_threads_of_tvm
from tvmconv.checking.suites import load_suite, suite_names
from tvmconv.runtime import gradients
from tvmconv.runtime.gradients import Geometry
from tvmconv.targets import backend_of, resolve_target

SECONDS = {"llvm": 0.05, "cuda": 0.01}
"""The time of a contender in a round, in seconds."""
CLOSE = {"float32": 2e-5, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The largest error that passes."""
KINDS = ("forward", "input", "weight")

Tensors = dict[str, Any]
Call = Callable[[], Any]


def tensors(workload: ConvWorkload, order: str, device: str) -> Tensors:
    """Return random tensors of a convolution, and of the gradient of its output; all but the weight in an order."""
    shapes, dtype = {"x": workload.x_shape, "w": workload.w_shape, "dy": workload.output_shape}, workload.dtype
    made = {name: torch.randn(shape, device=device).to(getattr(torch, dtype)) for name, shape in shapes.items()}
    return {name: made[name] if name == "w" else made[name].to(memory_format=ORDERS[order]) for name in made}


def ours(kind: str, workload: ConvWorkload, x: Any, w: Any, dy: Any) -> Call:
    """Return tvmconv's call for a kind."""
    options = workload.stride, workload.padding, workload.dilation
    known = Geometry(workload.x_shape, workload.w_shape, *options)
    return {
        "forward": partial(tvmconv.depthwise, x, w, *options),
        "input": partial(gradients.input_gradient, dy, w, known),
        "weight": partial(gradients.weight_gradient, dy, x, known),
    }[kind]


def theirs(kind: str, workload: ConvWorkload, x: Any, w: Any, dy: Any) -> Call:
    """Return PyTorch's call for a kind; x is padded first where its padding is not the same on both sides."""
    top, left, bottom, right = workload.padding
    even = (top, left) == (bottom, right)
    if not even:
        x = torch.nn.functional.pad(x, (left, right, top, bottom))
    weight = w.reshape(-1, 1, *workload.kernel)
    stride, padding, dilation = workload.stride, (top, left) if even else (0, 0), workload.dilation
    if kind == "forward":
        return partial(torch.conv2d, x, weight, None, stride, padding, dilation, workload.groups)
    number = ("input", "weight").index(kind)
    about = ([0], stride, padding, dilation, False, [0, 0], workload.groups, [number == 0, number == 1, False])
    return lambda: torch.ops.aten.convolution_backward(dy, x, weight, *about)[number]


def exact(kind: str, workload: ConvWorkload, given: Tensors, shape: tuple[int, ...]) -> Any:
    """Return PyTorch's result in float64, in the shape of tvmconv's."""
    found = theirs(kind, workload, **{name: tensor.double() for name, tensor in given.items()})()
    if kind == "input" and found.shape != shape:  # with its padding
        top, left = workload.padding[:2]
        found = found[:, :, top : top + workload.height, left : left + workload.width]
    return found.reshape(shape)


def measured(workload: ConvWorkload, kind: str, given: argparse.Namespace, target: Any) -> Row:
    """Return the times and the error of a kind for a workload."""
    backend, nbytes = backend_of(target), workload.bytes_moved
    number = sets_beyond_cache(nbytes, backend.on_gpu) if given.cold else 1
    sets = [tensors(workload, given.order, backend.device_type) for _ in range(number)]
    result = ours(kind, workload, **sets[0])()
    right = exact(kind, workload, sets[0], result.shape)
    error = errors_of({"tvmconv": result}, right, CLOSE[workload.dtype], f"{kind} of {workload}")["tvmconv"]
    calls = {
        "tvmconv": [ours(kind, workload, **each) for each in sets],
        "pytorch": [theirs(kind, workload, **each) for each in sets],
        "copy": [copy_of(nbytes, backend.device_type) for _ in sets],
    }
    timers = {name: timer(each, backend.on_gpu, SECONDS[target.kind.name]) for name, each in calls.items()}
    times = msgspec.to_builtins(interleave(timers, given.rounds))
    return {"kind": kind, "error": error, "bytes": nbytes, "times": times}


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the results for each workload until the limit."""
    target, end = resolve_target(given.target), time.monotonic() + given.limit
    use_threads_of_tvm(target)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    for suite in given.suites:
        for name, workload in load_suite(suite, target.kind.name, given.batch, given.dtype).items():
            for kind in KINDS:
                if time.monotonic() > end:
                    return
                found = measured(workload, kind, given, target)
                yield {"suite": suite, "name": name, "workload": str(workload), **found}


if __name__ == "__main__":
    suites = [name for name in suite_names() if name.startswith("depthwise")]
    options = {"target": SECONDS, "suites": suites, "dtype": CLOSE, "order": ORDERS, "batch": int}
    main(__doc__, rows, **options, rounds=9, cold=False, limit=3600.0)
