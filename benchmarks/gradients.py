"""Depthwise convolutions and their gradients beside PyTorch's, and beside copies of what they read and write.

    python benchmarks/gradients.py -o gradients.json                             # on the CPU
    python benchmarks/gradients.py --target cuda --cold -o gradients-h100.json   # on a GPU
    python benchmarks/gradients.py --suites depthwise-networks --dtype float16 --target cuda --limit 300
    python benchmarks/gradients.py --dtype float16 --order channels_last --target cuda --cold

The workloads are those of the suites whose names begin with "depthwise". For each, "forward" is the convolution,
"input" and "weight" are its gradients: times are of eager calls on a CPU, and of replays of a CUDA graph on a GPU; with
`--cold` no call finds its tensors in a cache. `--order` is that of the input, of the output and of their gradients in
memory. Results are first compared with PyTorch's in float64: "error" is the
largest difference, as a share of the largest number. A row is written as soon as it is measured; none begins after the
limit.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import geometric_mean
from typing import Any

import msgspec
import torch
from script import ORDERS, Document, Row, copy_of, error_of, options_of

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
    shapes = {"x": workload.x_shape, "w": workload.w_shape, "dy": workload.output_shape}
    made = {
        name: torch.randn(shape, device=device).to(getattr(torch, workload.dtype)) for name, shape in shapes.items()
    }
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
    """Return PyTorch's call for a kind; x gets padding of its own in front where it is not the same on both sides."""
    top, left, bottom, right = workload.padding
    even = (top, left) == (bottom, right)
    if not even:
        x = torch.nn.functional.pad(x, (left, right, top, bottom))
    weight = w.reshape(-1, 1, *workload.kernel)
    stride, padding, dilation = workload.stride, (top, left) if even else (0, 0), workload.dilation
    if kind == "forward":
        return partial(torch.conv2d, x, weight, None, stride, padding, dilation, workload.groups)
    place = ("input", "weight").index(kind)
    mask = [place == 0, place == 1, False]
    about = ([0], stride, padding, dilation, False, [0, 0], workload.groups, mask)

    def call() -> Any:
        return torch.ops.aten.convolution_backward(dy, x, weight, *about)[place]

    return call


def error(kind: str, workload: ConvWorkload, given: Tensors, result: Any) -> float:
    """Return the largest difference of a result from PyTorch's in float64, as a share of the largest number there."""
    exact = theirs(kind, workload, **{name: tensor.double() for name, tensor in given.items()})()
    if kind == "input" and exact.shape != result.shape:  # with its padding
        top, left = workload.padding[:2]
        exact = exact[:, :, top : top + workload.height, left : left + workload.width]
    return error_of(result, exact.reshape(result.shape))


def measured(workload: ConvWorkload, kind: str, given: argparse.Namespace, target: Any) -> dict[str, Any]:
    """Return the times and the error of a kind for a workload; raise `AssertionError` where tvmconv is wrong."""
    backend = backend_of(target)
    nbytes = workload.bytes_moved
    number = sets_beyond_cache(nbytes, backend.on_gpu) if given.cold else 1
    sets = [tensors(workload, given.order, backend.device_type) for _ in range(number)]
    wrong = error(kind, workload, sets[0], ours(kind, workload, **sets[0])())
    assert wrong <= CLOSE[workload.dtype], f"{kind} of {workload}: wrong by {wrong}"
    device = backend.device_type
    calls = {
        "tvmconv": [ours(kind, workload, **each) for each in sets],
        "pytorch": [theirs(kind, workload, **each) for each in sets],
        "copy": [copy_of(nbytes, device) for _ in sets],
    }
    timers = {name: timer(each, backend.on_gpu, SECONDS[target.kind.name]) for name, each in calls.items()}
    return {
        "kind": kind,
        "error": wrong,
        "bytes": nbytes,
        "times": msgspec.to_builtins(interleave(timers, given.rounds)),
    }


def rows(given: argparse.Namespace, target: Any) -> Iterator[Row]:
    """Yield the results for each workload until the limit."""
    end = time.monotonic() + given.limit
    for suite in given.suites:
        for name, workload in load_suite(suite, target.kind.name, given.batch, given.dtype).items():
            for kind in KINDS:
                if time.monotonic() > end:
                    return
                found = measured(workload, kind, given, target)
                yield {"suite": suite, "name": name, "workload": str(workload), **found}


def main() -> None:
    """Measure, print and write the rows."""
    suites = [name for name in suite_names() if name.startswith("depthwise")]
    parser = options_of(
        __doc__, target=SECONDS, suites=suites, dtype=CLOSE, order=ORDERS, rounds=9, cold=False, limit=3600.0
    )
    parser.add_argument("--batch", type=int, help="instead of the suite's")
    given = parser.parse_args()
    target = resolve_target(given.target)
    use_threads_of_tvm(target)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    settings = {name: getattr(given, name) for name in ("dtype", "order", "cold", "rounds")}
    document = Document(given.output, given.target, **settings)
    for row in rows(given, target):
        micro = ", ".join(f"{name} {1e6 * timing['median']:.1f} µs" for name, timing in row["times"].items())
        document.add(row, f"{row['suite']} {row['name']} {row['kind']}: {micro}, error {row['error']:.1e}")
    for kind in KINDS:
        times = [row["times"] for row in document.rows if row["kind"] == kind]
        for other in ("pytorch", "copy") if times else ():
            ratio = geometric_mean(each[other]["median"] / each["tvmconv"]["median"] for each in times)
            print(f"{kind}: {other} takes {ratio:.2f} times as long as tvmconv in the geometric mean of {len(times)}")


if __name__ == "__main__":
    main()
