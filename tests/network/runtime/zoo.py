"""Whole networks with random weights for tests: the graphs inside the onnx package, and the networks of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
import tvm
from onnx import numpy_helper

import tvmconv
from tests.shared.passes import use_kernels
from tvmconv import lowering
from tvmconv.bench.networks.models import NETWORKS as OF_TORCH
from tvmconv.bench.networks.weights import randomized
from tvmconv.checking.verify import TOLERANCES
from tvmconv.lowering.serial import serial_twin
from tvmconv.network import Layer, Model
from tvmconv.network.sites.batch_norm import simplify_batch_norms
from tvmconv.targets import resolve_target

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
SIZE = 64
"""The height and width of the images for the networks of torch, which give each of their layers work."""
SIZES = {"inception_v3": 107}
"""The same for networks that shrink their images further."""


@dataclass(frozen=True)
class Example:
    """A network, an input, and the expected outputs."""

    model: Model
    x: np.ndarray[Any, Any]
    expected: np.ndarray[Any, Any]

    def check(self, y: np.ndarray[Any, Any]) -> None:
        assert y.shape == self.expected.shape
        error = np.abs(y - self.expected).max()
        assert error <= TOLERANCES["float32"] * np.abs(self.expected).max(), error
        assert self.expected.std() > 10 * error


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with random weights: its own are all the same and so hide every error.

    A softmax at its end, which hides all but the largest numbers, is left out.
    """
    pool = np.random.default_rng(11).standard_normal(2**20 + 7).astype("float32")
    shapes = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    norms = [node for node in model.graph.node if node.op_type == "BatchNormalization"]
    positive = {name for node in norms for name in (node.input[1], node.input[4])}
    for node in [node for node in model.graph.node if node.op_type == "ConstantOfShape"]:
        (name,), shape = node.output, shapes[node.input[0]]
        values = np.resize(pool, shape)
        values = 0.5 + np.abs(values) / 4 if name in positive else values * np.prod(shape[1:], initial=1.0) ** -0.5
        model.graph.initializer.append(numpy_helper.from_array(values.astype("float32"), name))
        model.graph.node.remove(node)
    last = model.graph.node[-1]
    if last.op_type == "Softmax":
        model.graph.output[0].name = last.input[0]
        model.graph.node.remove(last)
    return model


def light(name: str) -> Example:
    """Return one of the nine graphs, against ONNX Runtime."""
    import onnxruntime

    model = with_random_weights(onnx.load(LIGHT / f"light_{name}.onnx"))
    imported = tvmconv.import_model(model)
    (spec,) = imported.inputs
    x = np.random.default_rng(3).standard_normal(spec.shape).astype("float32")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {spec.name: x})
    return Example(imported, x, expected)


def of_torch(name: str) -> Example:
    """Return one of the networks of torch, against itself in float64."""
    module = randomized(OF_TORCH[name])
    size = SIZES.get(name, SIZE)
    x = torch.randn(1, 3, size, size)
    model = tvmconv.import_model(module, (x,))
    with torch.no_grad():
        return Example(model, x.numpy(), module.double()(x.double()).numpy())


NETWORKS: dict[str, Callable[[], Example]] = {
    **{f"light-{name}": lambda name=name: light(name) for name in (
        "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
        "zfnet512",
    )},
    **{name: lambda name=name: of_torch(name) for name in OF_TORCH},
}  # fmt: skip


def have_kernels(layers: Iterable[Layer]) -> bool:
    """Return whether all convolutions run on kernels of tvmconv."""
    return all(layer.kernel.startswith("tvmconv ") for layer in layers)


def serial_network(model: Model, target: Any) -> Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]:
    """Return the model with tvmconv's CUDA kernels as serial code on the CPU, and the rest as TVM makes it."""
    mod, layers = use_kernels(model.mod, resolve_target(target))
    assert have_kernels(layers)
    for var, func in mod.functions.items():
        if isinstance(func, tvm.tirx.PrimFunc):
            mod[var] = serial_twin(func)
    machine = tvm.runtime.vm.VirtualMachine(
        lowering.build(simplify_batch_norms(mod), resolve_target("llvm")), tvm.cpu()
    )
    return lambda x: machine["main"](tvm.runtime.tensor(x)).numpy()
