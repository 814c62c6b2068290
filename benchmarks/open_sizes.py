"""One build for any size beside a build for each, and beside ONNX Runtime on a CPU, PyTorch on a GPU.

    python benchmarks/open_sizes.py -o open-sizes.json       # three networks for any batch, a U-Net for any size
    python benchmarks/open_sizes.py --target cuda -o open-sizes.json    # the same on a GPU, in float16 too
    python benchmarks/open_sizes.py --rounds 3 --batches 1,8 --networks squeezenet --images 0

The networks are those of `tvmconv bench networks`, exported to ONNX with an open batch; a U-Net has a batch of one, and
images that are multiples of four. All are built first, side by side, each in a process of its own with nothing compiled
before. "first" is the first call with a size, in seconds, from the smallest to the largest. Times are of calls as users
make them, until the result is there. Results are compared first.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from script import Row, begin, errors_of, main, numbers, timed, words
from torch import nn

from tvmconv import load
from tvmconv.bench.networks import models
from tvmconv.bench.networks.contenders import exported
from tvmconv.bench.networks.parts import Concat
from tvmconv.bench.peers.onnxruntime import session_of
from tvmconv.network import build, import_model
from tvmconv.targets.threads import usable_cpus

NETWORKS = ["resnet50", "mobilenet_v2", "squeezenet"]
SECONDS = {"cpu": 0.5, "cuda": 0.1}
"""The time of a contender in a round, in seconds."""
CLOSE = {"float32": 1e-4, "float16": 2e-2}
"""The largest difference between two results, as a share of the largest number."""
BATCHES = {"cpu": [1, 2, 8, 32], "cuda": [1, 3, 8, 32, 100]}
DTYPES = {"cpu": ["float32"], "cuda": ["float32", "float16"]}

Shape = tuple[int, ...]
Libraries = Mapping[tuple[Path, Shape | None], Path]
"""The files of built networks, by that of ONNX and the shape of the input; None for all shapes."""


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


@torch.no_grad()
def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each network and size."""
    _, device = begin(given.target)
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


def case_of(name: str, dtype: str, folder: str, shapes: Sequence[Shape]) -> Case:
    """Write a network to a file of ONNX in which the sizes that differ are open."""
    torch.manual_seed(0)
    module = (unet() if name == "unet" else models.NETWORKS[name]()).eval().to(getattr(torch, dtype))
    axes = {2: "height", 3: "width"} if name == "unet" else {0: "batch"}
    path = Path(folder, f"{name}-{dtype}.onnx")
    path.write_bytes(exported(module, torch.zeros(1, 3, 224, 224, dtype=getattr(torch, dtype)), axes))
    return Case(name, dtype, module, path, shapes)


def all_built(cases: Sequence[Case], target: str, jobs: int) -> Libraries:
    """Return the networks for all shapes and for each, built side by side; those for all first."""
    wanted: list[tuple[Path, Shape | None]] = [(case.path, None) for case in cases]
    wanted += [(case.path, shape) for case in cases for shape in case.shapes]
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        made = pool.map(partial(built, target), *zip(*wanted, strict=True)) if wanted else ()
        return dict(zip(wanted, made, strict=True))


def built(target: str, path: Path, shape: Shape | None) -> Path:
    """Build a network, for one shape or for all, in this process, and write it to a file beside the model."""
    os.environ["TVMCONV_CACHE_DIR"] = os.devnull
    library = path.with_suffix(f".{'-'.join(map(str, shape or ('open',)))}.so")
    build(import_model(path, shapes={"x": shape} if shape else None), target).export(library)
    return library


def of_network(case: Case, libraries: Libraries, device: str, rounds: int) -> Iterator[Row]:
    """Yield a row for each shape of the input, of one network for all and one for each."""

    def image(shape: Shape) -> torch.Tensor:
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(device, getattr(torch, case.dtype))

    peer_name, peer = ("pytorch", case.module.to(device)) if device == "cuda" else ("onnxruntime", ran(case.path))
    opened, first = load(libraries[case.path, None]), dict[Shape, float]()
    for shape in case.shapes:
        x, start = image(shape), time.perf_counter()
        waited(opened, x)
        first[shape] = time.perf_counter() - start
    for shape in case.shapes:
        contenders = {"open": opened, "known": load(libraries[case.path, shape]), peer_name: peer}
        calls = {name: partial(waited, call, image(shape)) for name, call in contenders.items()}
        results = {name: call() for name, call in calls.items()}
        errors_of(results, results["open"], CLOSE[case.dtype], f"{case.name} {shape}")
        times = timed(calls, "cpu", rounds, SECONDS[device])  # a graph would hide what a call costs
        yield {"name": case.name, "dtype": case.dtype, "shape": shape, "first": first[shape], "times": times}


def ran(path: Path) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function that runs a model in ONNX Runtime."""
    session = session_of(path.read_bytes())
    return lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


def waited(call: Callable[..., torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    """Return the result of a call that a GPU has computed to the end."""
    y = call(x)
    if y.is_cuda:
        torch.cuda.synchronize()
    return y


if __name__ == "__main__":
    options = {"target": {"llvm": "cpu", "cuda": "cuda"}, "networks": NETWORKS, "batches": numbers, "dtypes": words}
    main(__doc__, rows, **options, images=20, rounds=5, jobs=usable_cpus())
