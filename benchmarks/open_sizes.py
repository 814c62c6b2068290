"""One build for any size beside a build for each, and beside ONNX Runtime, on a CPU.

    python benchmarks/open_sizes.py -o open-sizes.json           # three networks for any batch, a U-Net for any size
    python benchmarks/open_sizes.py --rounds 3 --batches 1,8

The networks are those of `tvmconv bench network`, exported to ONNX with an open batch; the U-Net has a batch of one and
images that are multiples of four. "first" is the first call with a size, in seconds; results are compared first.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import torch
import tvm
from torch import nn

from tvmconv import __version__, get_num_threads
from tvmconv.bench import networks
from tvmconv.bench.network import file_bytes
from tvmconv.bench.peers.onnxruntime import session_of
from tvmconv.bench.timing import measure, use_threads_of_tvm
from tvmconv.network import Network, build, import_model
from tvmconv.targets import device_facts, resolve_target

NETWORKS = ("resnet50", "mobilenet_v2", "squeezenet")
SECONDS = 0.5
"""The time of a contender in a round, in seconds."""
CLOSE = 1e-4
"""The largest difference between two results, as a share of the largest number."""


class UNet(nn.Module):
    """Two halvings and two doublings, with the planes before beside those behind."""

    def __init__(self) -> None:
        super().__init__()

        def block(channels: int, out: int) -> nn.Module:
            layers = (nn.Conv2d(channels, out, 3, padding=1), nn.ReLU(), nn.Conv2d(out, out, 3, padding=1), nn.ReLU())
            return nn.Sequential(*layers)

        self.down = nn.ModuleList([block(3, 32), block(32, 64), block(64, 128)])
        self.up = nn.ModuleList([block(192, 64), block(96, 32)])
        self.last = nn.Conv2d(32, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.down[0](x)
        middle = self.down[1](nn.functional.max_pool2d(wide, 2))
        y = self.down[2](nn.functional.max_pool2d(middle, 2))
        for block, beside in zip(self.up, (middle, wide), strict=True):
            y = block(torch.cat([nn.functional.interpolate(y, scale_factor=2.0, mode="nearest"), beside], 1))
        y = self.last(y)
        assert isinstance(y, torch.Tensor)
        return y


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batches", default="1,2,8,32", help="for the networks")
    parser.add_argument("--images", type=int, default=20, help="the number of image sizes for the U-Net")
    parser.add_argument("-o", "--output", type=Path, help="a JSON file to write")
    options = parser.parse_args()
    use_threads_of_tvm(resolve_target("llvm"))
    rows: list[dict[str, Any]] = []
    report = {
        "device": str(device_facts("llvm")),
        "threads": get_num_threads(),
        "versions": {"tvmconv": __version__, "tvm": tvm.__version__, "onnxruntime": onnxruntime.__version__},
        "rows": rows,
    }
    for row in measured(tuple(map(int, options.batches.split(","))), options.images, options.rounds):
        rows.append(row)
        times = {name: f"{1e3 * timing['median']:.2f}" for name, timing in row["times"].items()}
        print(f"{row['network']:14s} {row['shape']}: {times} ms, first {1e3 * row['first']:.1f} ms", flush=True)
        if options.output:
            options.output.write_text(json.dumps(report, indent=1) + "\n")


def measured(batches: Sequence[int], images: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each network and size."""
    with tempfile.TemporaryDirectory() as folder:
        for name in NETWORKS:
            path = exported(getattr(networks, name)(), Path(folder) / f"{name}.onnx", {0: "batch"})
            yield from each_size(name, path, [(batch, 3, 224, 224) for batch in batches], rounds)
        path = exported(UNet(), Path(folder) / "unet.onnx", {2: "height", 3: "width"})
        sizes = np.random.default_rng(0).integers(16, 80, (images, 2)) * 4
        yield from each_size("unet", path, [(1, 3, int(height), int(width)) for height, width in sizes], rounds)


def exported(module: nn.Module, path: Path, axes: dict[int, str]) -> Path:
    """Write a network to a file of ONNX in which some axes are open."""
    torch.manual_seed(0)
    example, names = torch.zeros(1, 3, 224, 224), {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the export of old is to be replaced, and folds what the new one does not
        torch.onnx.export(module.eval(), (example,), str(path), **names, dynamic_axes={"x": axes}, dynamo=False)
    return path


def each_size(name: str, path: Path, shapes: Sequence[tuple[int, ...]], rounds: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape of the input, of one network for all and one for each."""
    (opened, seconds), session = built(path), session_of(path.read_bytes())
    for shape in shapes:
        x = np.random.default_rng(1).standard_normal(shape).astype("float32")
        start = time.perf_counter()
        y = opened(x)
        first = time.perf_counter() - start
        known, known_seconds = built(path, shape)
        contenders: dict[str, Callable[[], Any]] = {
            "open": lambda x=x: opened(x),  # type: ignore[misc]
            "known": lambda x=x, known=known: known(x),  # type: ignore[misc]
            "onnxruntime": lambda x=x: session.run(None, {"x": x}),  # type: ignore[misc]
        }
        for result in (known(x), session.run(None, {"x": x})[0]):
            assert np.abs(y - result).max() <= CLOSE * np.abs(result).max(), name
        times = msgspec.to_builtins(measure(contenders, False, rounds, SECONDS))
        yield {
            "network": name,
            "shape": shape,
            "first": first,
            "times": times,
            "build": {"open": seconds, "known": known_seconds},
            "file_bytes": {"open": file_bytes(opened.export), "known": file_bytes(known.export)},
        }


def built(path: Path, shape: tuple[int, ...] | None = None) -> tuple[Network, float]:
    """Return the network, for one shape or for all, and the seconds that its build took."""
    start = time.perf_counter()
    network = build(import_model(path, shapes={"x": shape} if shape else None))
    return network, time.perf_counter() - start


if __name__ == "__main__":
    main()
