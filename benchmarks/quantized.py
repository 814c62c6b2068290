"""Quantized networks beside ONNX Runtime's int8 and beside float32, on a CPU.

    python benchmarks/quantized.py -o quantized.json --threads 2
    python benchmarks/quantized.py mobilenet_v2 --rounds 3

The networks are those of `tvmconv bench networks`, with random weights, exported to ONNX and quantized by ONNX Runtime
in both forms with random images. Results are compared first: "top1" are the shares of images of whose largest output
tvmconv agrees with ONNX Runtime on the same file, and with ONNX Runtime's float32.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from script import Row, begin, main, timed

from tvmconv import get_num_threads, set_num_threads
from tvmconv.bench.networks.contenders import exported
from tvmconv.bench.networks.models import NETWORKS
from tvmconv.bench.networks.weights import randomized
from tvmconv.bench.peers.onnxruntime import session_of
from tvmconv.integrations.quantizing import FORMATS, quantize
from tvmconv.network import build, import_model

DEFAULT = ("resnet50", "mobilenet_v2", "efficientnet_b0")
SECONDS = 0.5
"""The time of a contender in a round, in seconds."""
CALIBRATING, COMPARED = 8, 32
"""The numbers of random images that ranges are taken from, and that results are compared with."""


def images(seed: int, count: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((1, 3, 224, 224)).astype("float32")} for _ in range(count)]


def agreement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the share of the images with the same largest output."""
    return float(np.mean([a.argmax() == b.argmax() for a, b in zip(ours, theirs, strict=True)]))


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the results for each network."""
    set_num_threads(given.threads)
    target, device = begin("llvm")
    samples, compared = images(1, CALIBRATING), images(2, COMPARED)
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            paths = {form: Path(folder, f"{form}.onnx") for form in ("float32", *FORMATS)}
            paths["float32"].write_bytes(exported(randomized(NETWORKS[name]), torch.zeros(1, 3, 224, 224)))
            row: Row = {"name": name}
            contenders, exact = {}, []
            for form, path in paths.items():
                if form != "float32":
                    row["snr_db"] = quantize(paths["float32"], path, samples, form)[-1].ratio
                network, session = build(import_model(path), target), session_of(path.read_bytes())
                ours = [np.asarray(network(**sample)) for sample in compared]
                theirs = [session.run(None, sample)[0] for sample in compared]
                exact = exact or theirs
                row[form] = {"top1_onnxruntime": agreement(ours, theirs), "top1_float32": agreement(ours, exact)}
                row[form]["kernels"] = Counter(layer.kernel for layer in network.layers)
                contenders[f"tvmconv {form}"] = partial(network, **compared[0])
                contenders[f"onnxruntime {form}"] = partial(session.run, None, compared[0])
            yield {**row, "times": timed(contenders, device, given.rounds, SECONDS)}


if __name__ == "__main__":
    main(__doc__, rows, names=DEFAULT, rounds=9, threads=get_num_threads())
