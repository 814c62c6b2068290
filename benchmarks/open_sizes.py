"""One build for any size beside a build for each, and beside ONNX Runtime on a CPU, PyTorch on a GPU.

    python benchmarks/open_sizes.py -o open-sizes.json       # three networks for any batch, a U-Net for any size, calls
    python benchmarks/open_sizes.py --target cuda -o open-sizes.json    # the same on a GPU, in float16 too
    python benchmarks/open_sizes.py --rounds 3 --batches 1,8 --networks squeezenet --images 0 --calls 0

The networks are those of `tvmconv bench networks`, exported to ONNX with an open batch; a U-Net has a batch of one, and
images that are multiples of four. All are built first, side by side, each in a process of its own with nothing compiled
before. "first" is the first call with a size, in seconds, from the smallest to the largest; "memory" are the bytes that
a GPU, or the process on a CPU, has taken since the network was loaded: "open" after this size, "again" after the
smallest that follows the largest, "known" of the network for this size. Times are of calls as users make them, until
the result is there. Results are compared first.

The calls are `tvmconv.conv2d` and `depthwise` with as many batches in a row as `--calls` says, in a random order:
"first" are the seconds of the first pass through them, in which tvmconv has "compiled" so many kernels, and "times"
those of a call in later passes, on average.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np
import torch
from script import Row, errors_of, exported, main, numbers, timed, words
from torch import nn

from tvmconv import ConvWorkload, load
from tvmconv.bench.networks import models
from tvmconv.bench.networks.parts import Concat
from tvmconv.bench.peers.onnxruntime import session_of
from tvmconv.bench.timing import Timing, interleave, use_threads_of_tvm
from tvmconv.network import build, import_model
from tvmconv.runtime import convolving, operators
from tvmconv.targets import resolve_target
from tvmconv.targets.threads import usable_cpus

NETWORKS = ["resnet50", "mobilenet_v2", "squeezenet"]
SECONDS = {"cpu": 0.5, "cuda": 0.1}
"""The time of a contender in a round, in seconds."""
CLOSE = {"float32": 1e-4, "float16": 2e-2}
"""The largest difference between two results, as a share of the largest number."""
BATCHES = {"cpu": [1, 2, 8, 32], "cuda": [1, 3, 8, 32, 100]}
DTYPES = {"cpu": ["float32"], "cuda": ["float32", "float16"]}
CALLS = {
    "3x3": ConvWorkload.conv2d((1, 64, 56, 56), (64, 64, 3, 3)),
    "1x1": ConvWorkload.conv2d((1, 256, 14, 14), (1024, 256, 1, 1)),
    "depthwise": ConvWorkload.depthwise((1, 144, 56, 56), (144, 1, 3, 3)),
}
"""The convolutions that are called with one batch after the other."""

Shape = tuple[int, ...]


def unet() -> nn.Module:
    """Return two halvings and two doublings, with the planes before beside those behind."""

    def block(channels: int, out: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU()]

    def around(inner: nn.Module) -> nn.Module:
        return Concat(nn.Sequential(nn.MaxPool2d(2), inner, nn.Upsample(scale_factor=2.0)), nn.Identity())

    middle = nn.Sequential(*block(32, 64), around(nn.Sequential(*block(64, 128))), *block(192, 64))
    return nn.Sequential(*block(3, 32), around(middle), *block(96, 32), nn.Conv2d(32, 2, 1))


@dataclass(frozen=True)
class Case:
    """A network in a dtype, with the shapes of its input that it is tried with, the smallest first."""

    name: str
    dtype: str
    module: nn.Module
    path: Path
    shapes: Sequence[Shape]


@dataclass(frozen=True)
class Library:
    """The file of a built network."""

    path: Path
    seconds: float
    """The seconds that its build took, from the model of ONNX."""
    kernels: dict[str, int]
    """The number of convolutions by their kernels."""


@torch.no_grad()
def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network and size, then for calls."""
    target, device = resolve_target(given.target), "cuda" if given.target == "cuda" else "cpu"
    use_threads_of_tvm(target)
    torch.backends.cudnn.allow_tf32 = False
    sizes = np.random.default_rng(0).integers(16, 80, (given.images, 2)) * 4
    planes = sorted((1, 3, *map(int, size)) for size in sizes)
    batches, dtypes = given.batches or BATCHES[device], given.dtypes or DTYPES[device]
    with tempfile.TemporaryDirectory() as folder:
        shapes = [(batch, 3, 224, 224) for batch in sorted(batches)]
        cases = [case_of(name, dtype, folder, shapes) for name in given.networks for dtype in dtypes]
        cases += [case_of("unet", "float32", folder, planes)] if planes else []
        libraries = all_built(cases, given.target, given.jobs)
        for case in cases:
            yield from of_network(case, libraries, device, given.rounds)
    for name, workload in CALLS.items() if given.calls else ():
        for dtype in dtypes:
            yield of_calls(name, msgspec.structs.replace(workload, dtype=dtype), device, given.calls, given.rounds)


def case_of(name: str, dtype: str, folder: str, shapes: Sequence[Shape]) -> Case:
    """Write a network to a file of ONNX in which the sizes that differ are open."""
    torch.manual_seed(0)
    module = (unet() if name == "unet" else models.NETWORKS[name]()).eval().to(getattr(torch, dtype))
    axes = {2: "height", 3: "width"} if name == "unet" else {0: "batch"}
    return Case(name, dtype, module, exported(module, Path(folder, f"{name}-{dtype}.onnx"), axes, dtype), shapes)


def all_built(cases: Sequence[Case], target: str, jobs: int) -> dict[tuple[Path, Shape | None], Library]:
    """Return the networks for all shapes, by None, and for each, built side by side; those for all first."""
    wanted: list[tuple[Path, Shape | None]] = [(case.path, None) for case in cases]
    wanted += [(case.path, shape) for case in cases for shape in case.shapes]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        made = pool.map(partial(built, target), *zip(*wanted, strict=True)) if wanted else ()
        return dict(zip(wanted, made, strict=True))


def built(target: str, path: Path, shape: Shape | None) -> Library:
    """Build a network, for one shape or for all, in this process, and write it to a file beside the model."""
    os.environ["TVMCONV_CACHE_DIR"] = os.devnull
    start = time.perf_counter()
    network = build(import_model(path, shapes={"x": shape} if shape else None), target)
    seconds = time.perf_counter() - start
    library = path.with_suffix(f".{'-'.join(map(str, shape or ('open',)))}.so")
    network.export(library)
    return Library(library, seconds, dict(Counter(layer.kernel for layer in network.layers)))


def of_network(
    case: Case, libraries: dict[tuple[Path, Shape | None], Library], device: str, rounds: int
) -> Iterator[Row]:
    """Yield a row for each shape of the input, of one network for all and one for each."""

    def image(shape: Shape) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, getattr(torch, case.dtype))

    peer_name, peer = ("pytorch", case.module.to(device)) if device == "cuda" else ("onnxruntime", ran(case.path))
    library, before = libraries[case.path, None], taken(device)
    opened = load(library.path)
    first, memory = {}, {}
    for shape in case.shapes:
        x, start = image(shape), time.perf_counter()
        waited(opened, x)
        first[shape], memory[shape] = time.perf_counter() - start, {"open": taken(device) - before}
    waited(opened, image(case.shapes[0]))
    memory[case.shapes[0]]["again"] = taken(device) - before
    for shape in case.shapes:
        x, one, before = image(shape), libraries[case.path, shape], taken(device)
        known = load(one.path)
        for _ in range(2):
            waited(known, x)
        memory[shape]["known"] = taken(device) - before
        contenders = {"open": opened, "known": known, peer_name: peer}
        calls = {name: partial(waited, call, x) for name, call in contenders.items()}
        results = {name: call() for name, call in calls.items()}
        errors_of(results, results["open"], CLOSE[case.dtype], f"{case.name} {shape}")
        yield {
            "name": case.name,
            "dtype": case.dtype,
            "shape": shape,
            "first": first[shape],
            "times": timed(calls, False, rounds, SECONDS[device]),
            "build": {"open": library.seconds, "known": one.seconds},
            "file_bytes": {"open": library.path.stat().st_size, "known": one.path.stat().st_size},
            "memory": memory[shape],
            "kernels": {"open": library.kernels, "known": one.kernels},
        }
        del known, contenders, calls, results


def ran(path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that runs a model in ONNX Runtime."""
    session = session_of(path.read_bytes())
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def waited(call: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
    """Return the result of a call that a GPU has computed to the end."""
    y = call(*inputs)
    if y.is_cuda:
        torch.cuda.synchronize()
    return y


def taken(device: str) -> int:
    """Return the bytes of the GPU that are in use, without those that torch keeps for later, or of the process."""
    gc.collect()
    if device == "cpu":
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def of_calls(name: str, workload: ConvWorkload, device: str, count: int, rounds: int) -> Row:
    """Return the row of calls of a convolution with batches of 1 to a count."""
    generator, dtype = torch.Generator().manual_seed(1), getattr(torch, workload.dtype)
    x = torch.randn(count, *workload.x_shape[1:], generator=generator).to(device, dtype)
    w = (torch.randn(workload.w_shape, generator=generator) / workload.terms**0.5).to(device, dtype)
    ours = convolving.depthwise if workload.is_depthwise else convolving.conv2d

    def of_torch(tried: bool, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        torch.backends.cudnn.benchmark = tried
        return nn.functional.conv2d(x, w, padding=w.shape[2] // 2, groups=x.shape[1] // w.shape[1])

    contenders: dict[str, Callable[..., torch.Tensor]] = {"tvmconv": ours, "pytorch": partial(of_torch, False)}
    if device == "cuda":
        contenders["cudnn.benchmark"] = partial(of_torch, True)
    for call in contenders.values():  # what is loaded for any convolution is not counted
        waited(call, x[:1, :1, :8, :8].contiguous(), w[:1, :1].contiguous())
    batches = [int(batch) for batch in np.random.default_rng(0).permutation(np.arange(1, count + 1))]

    def one_pass(call: Callable[..., torch.Tensor]) -> float:
        start = time.perf_counter()
        for batch in batches:
            y = call(x[:batch], w)
        waited(lambda: y)
        return time.perf_counter() - start

    compiled = len(operators._operators)
    first = {each: one_pass(call) for each, call in contenders.items()}
    compiled = len(operators._operators) - compiled
    results = {each: call(x, w) for each, call in contenders.items()}
    errors_of(results, results["pytorch"].double(), CLOSE[workload.dtype], str(workload))
    passes = interleave({each: partial(one_pass, call) for each, call in contenders.items()}, rounds)
    times = {each: Timing(*(value / count for value in (t.median, t.low, t.high))) for each, t in passes.items()}
    shape = (f"1 to {count}", *workload.x_shape[1:])
    about = {"name": name, "dtype": workload.dtype, "shape": shape, "first": first, "compiled": compiled}
    return {**about, "times": msgspec.to_builtins(times)}


if __name__ == "__main__":
    options = {"target": {"llvm": "cpu", "cuda": "cuda"}, "networks": NETWORKS, "batches": numbers, "dtypes": words}
    main(__doc__, rows, **options, images=20, calls=100, rounds=5, jobs=usable_cpus())
