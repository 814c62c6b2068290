"""Quantized networks beside ONNX Runtime's int8 and beside float32, on a CPU.

    python benchmarks/quantized.py -o quantized.json --threads 2
    python benchmarks/quantized.py mobilenet_v2 --rounds 3

The networks are those of `tvmconv bench networks`, with random weights, exported to ONNX and quantized by ONNX Runtime
in both forms with random images. Results are compared first: "steps" are the largest difference from ONNX Runtime's own
result for the same file, in steps of the output's quantization, and "top1" the shares of images of whose largest output
both agree, and of which int8 agrees with float32.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from script import Row, exported, main, timed

from tvmconv import get_num_threads, set_num_threads
from tvmconv.bench.networks.models import NETWORKS
from tvmconv.bench.networks.weights import randomized
from tvmconv.bench.peers.onnxruntime import session_of
from tvmconv.bench.timing import use_threads_of_tvm
from tvmconv.integrations.quantizing import FORMATS, quantize
from tvmconv.network import Network, build, import_model
from tvmconv.targets import resolve_target

DEFAULT = ("resnet50", "mobilenet_v2", "efficientnet_b0")
SECONDS = 0.5
"""The time of a contender in a round, in seconds."""
CALIBRATING, COMPARED = 8, 32
"""The numbers of random images that ranges are taken from, and that results are compared with."""


def images(seed: int, count: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(seed)
    return [{"x": generator.standard_normal((1, 3, 224, 224)).astype("float32")} for _ in range(count)]


def output_step(path: Path) -> float:
    """Return the step of the quantization of the model's output."""
    model = onnx.load(path)
    constants = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    last = next(node for node in model.graph.node if model.graph.output[0].name in node.output)
    assert last.op_type == "DequantizeLinear"
    return float(constants[last.input[1]])


def agreement(ours: Sequence[np.ndarray], theirs: Sequence[np.ndarray]) -> float:
    """Return the share of the images with the same largest output."""
    return float(np.mean([a.argmax() == b.argmax() for a, b in zip(ours, theirs, strict=True)]))


def in_float(network: Network) -> dict[str, str]:
    """Return the convolutions and linear layers that are in floating point, with the reasons."""
    layers = [layer.convolution for layer in network.layers]
    return {
        each.name: each.in_float or str(each.obstacle)
        for each in layers
        if each.workload is None or each.workload.dtype not in ("int8", "uint8")
    }


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield the results for each network."""
    set_num_threads(given.threads)
    target = resolve_target("llvm")
    use_threads_of_tvm(target)
    samples, compared = images(1, CALIBRATING), images(2, COMPARED)
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            paths = {"float32": exported(randomized(NETWORKS[name]), Path(folder, f"{name}.onnx"))}
            for form in FORMATS:
                paths[form] = Path(folder, f"{form}.onnx")
                noise = quantize(paths["float32"], paths[form], samples, form)
            row: Row = {"name": name, "snr_db": noise[-1].ratio}
            contenders, exact = {}, []
            for form, path in paths.items():
                network, session = build(import_model(path), target), session_of(path.read_bytes())
                ours = [np.asarray(network(**sample)) for sample in compared]
                theirs = [session.run(None, sample)[0] for sample in compared]
                exact = exact or theirs
                row[form] = {"top1_onnxruntime": agreement(ours, theirs), "top1_float32": agreement(ours, exact)}
                if form != "float32":
                    distance = max(float(np.abs(a - b).max()) for a, b in zip(ours, theirs, strict=True))
                    row[form] |= {"steps": round(distance / output_step(path)), "in_float": in_float(network)}
                    row[form]["kernels"] = Counter(layer.kernel for layer in network.layers)
                contenders[f"tvmconv {form}"] = partial(network, **compared[0])
                contenders[f"onnxruntime {form}"] = partial(session.run, None, compared[0])
                print(f"{name} {form}: {row[form]}")
            yield {**row, "times": timed(contenders, False, given.rounds, SECONDS)}


if __name__ == "__main__":
    main(__doc__, rows, names=DEFAULT, rounds=9, threads=get_num_threads())
