"""Depthwise convolutions and their gradients beside PyTorch's, and beside copies of what they read and write.

    python benchmarks/gradients.py -o gradients.json                             # on the CPU
    python benchmarks/gradients.py --target cuda --cold -o gradients-h100.json   # on a GPU
    python benchmarks/gradients.py --suites depthwise-networks --dtype float16 --target cuda
    python benchmarks/gradients.py --dtype float16 --order channels_last --target cuda --cold

The workloads are those of the suites whose names begin with "depthwise". For each, "forward" is the convolution,
"input" and "weight" are its gradients: times are of eager calls on a CPU, and of replays of a CUDA graph on a GPU; with
`--cold` no call finds its tensors in a cache. `--order` is that of the input, of the output and of their gradients in
memory. Results are first compared with PyTorch's in float64: "error" is the largest difference, as a share of the
largest number.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import Any

import msgspec
import torch
from script import CLOSE, ORDERS, Row, begin, errors_of, main

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.bench.peers import LIMITS
from tvmconv.bench.peers.pytorch import own_padding, padded
from tvmconv.bench.timing import Call, interleave, sets_beyond_cache, timer
from tvmconv.checking.suites import load_suite, suite_names
from tvmconv.runtime import gradients
from tvmconv.runtime.gradients import Geometry

SECONDS = {"llvm": 0.05, "cuda": 0.01}
"""The time of a contender in a round, in seconds."""
KINDS = ("forward", "input", "weight")

Tensors = dict[str, Any]


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
    x, weight = (padded(workload, {"x": x, "w": w})[name] for name in ("x", "w"))
    stride, padding, dilation = workload.stride, own_padding(workload), workload.dilation
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


def measured(workload: ConvWorkload, kind: str, given: argparse.Namespace, device: str) -> Row:
    """Return the times and the error of a kind for a workload."""
    nbytes, on_gpu = workload.bytes_moved, device == "cuda"
    number = sets_beyond_cache(nbytes, on_gpu) if given.cold else 1
    sets = [tensors(workload, given.order, device) for _ in range(number)]
    result = ours(kind, workload, **sets[0])()
    right = exact(kind, workload, sets[0], result.shape)
    error = errors_of({"tvmconv": result}, right, CLOSE[workload.dtype], f"{kind} of {workload}")["tvmconv"]
    calls = {
        "tvmconv": [ours(kind, workload, **each) for each in sets],
        "pytorch": [theirs(kind, workload, **each) for each in sets],
        "copy": [LIMITS[0].call(nbytes, device) for _ in sets],
    }
    timers = {name: timer(each, on_gpu, SECONDS[given.target]) for name, each in calls.items()}
    times = msgspec.to_builtins(interleave(timers, given.rounds))
    return {"kind": kind, "error": error, "bytes": nbytes, "times": times}


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the results for each workload."""
    _, device = begin(given.target)
    for suite in given.suites:
        for name, workload in load_suite(suite, given.target, given.batch, given.dtype).items():
            for kind in KINDS:
                found = measured(workload, kind, given, device)
                yield {"suite": suite, "name": name, "workload": str(workload), **found}


if __name__ == "__main__":
    suites = [name for name in suite_names() if name.startswith("depthwise")]
    options = {"target": SECONDS, "suites": suites, "dtype": CLOSE, "order": ORDERS, "batch": int}
    main(__doc__, rows, **options, rounds=9, cold=False)
