"""tvmconv as a backend of ONNX, which ONNX's own conformance tests can run.

import tvmconv.onnx_backend as backend

representation = backend.prepare(model, "CPU")
outputs = representation.run([x])
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, Device, DeviceType

from tvmconv.network import Network, build, import_model
from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.targets import has_gpu

TARGETS = {DeviceType.CPU: "llvm", DeviceType.CUDA: "cuda"}


class Representation(BackendRep):  # type: ignore[misc]
    """A network that was built from a model, as ONNX's tests run it."""

    def __init__(self, network: Network) -> None:
        self.network = network

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Return the outputs for inputs as one array, a sequence of them in order, or a mapping from their names."""
        if isinstance(inputs, Mapping):
            outputs = self.network(**{name: np.asarray(array) for name, array in inputs.items()})
        else:
            arrays = [inputs] if isinstance(inputs, np.ndarray) else inputs
            outputs = self.network(*map(np.asarray, arrays))
        return outputs if isinstance(outputs, tuple) else (outputs,)


class TvmconvBackend(Backend):  # type: ignore[misc]
    """A backend that builds models for "CPU" and "CUDA", or raises `UnsupportedModelError`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the model can be imported."""
        try:
            import_model(model)
        except UnsupportedModelError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Representation:
        """Build the model for a device."""
        super().prepare(model, device, **kwargs)
        return Representation(build(model, TARGETS[Device(device).type]))

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Sequence[Any],
        device: str = "CPU",
        outputs_info: Any = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Return the outputs of one node for its inputs in order; those left out are not in `inputs`."""
        super().run_node(node, inputs, device, outputs_info, **kwargs)
        arrays = dict(zip(filter(None, node.input), map(np.asarray, inputs), strict=True))
        graph = onnx.helper.make_graph(
            [node],
            node.op_type,
            [
                onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in arrays.items()
            ],
            [onnx.ValueInfoProto(name=name) for name in node.output if name],
        )
        opset = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
        return Representation(build(model, TARGETS[Device(device).type])).run(arrays)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether networks can run on a device here."""
        kind = Device(device).type
        return kind == DeviceType.CPU or (kind == DeviceType.CUDA and has_gpu())


is_compatible = TvmconvBackend.is_compatible
prepare = TvmconvBackend.prepare
run_model = TvmconvBackend.run_model
run_node = TvmconvBackend.run_node
supports_device = TvmconvBackend.supports_device
