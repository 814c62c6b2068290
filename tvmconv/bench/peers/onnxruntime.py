"""A peer that runs ONNX Runtime on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Call, Operands, Peer

if TYPE_CHECKING:
    import tvm


class OnnxRuntime(Peer):
    """A model of one Conv node, on as many threads as PyTorch has; its arrays are bound, so that nothing is copied."""

    name = "onnxruntime"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if backend_of(target).on_gpu or workload.dtype != "float32" or workload.epilogue != Epilogue():
            return "one Conv node in float32 on a CPU"
        missing = [package for package in ("onnx", "onnxruntime") if find_spec(package) is None]
        return f"{' and '.join(missing)} not installed" if missing else None

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from onnxruntime.capi import onnxruntime_pybind11_state as errors

        try:
            return [_call(workload, operands) for operands in sets]
        except (errors.Fail, errors.InvalidArgument, errors.NotImplemented, errors.RuntimeException) as error:
            raise RuntimeError(str(error)) from None


def session_of(model: bytes) -> Any:
    """Return a session of ONNX Runtime for a model on a CPU, on as many threads as PyTorch has."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _call(workload: ConvWorkload, operands: Operands) -> Call:
    """Return a call of a session whose weight is a constant of the model, laid out as it likes when it is made."""
    import numpy as np
    import torch

    session = session_of(_model(workload, operands["w"].reshape(workload.out_channels, -1, *workload.kernel).numpy()))
    output = torch.empty(workload.output_shape)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, workload.x_shape, operands["x"].data_ptr())
    binding.bind_output("y", "cpu", 0, np.float32, workload.output_shape, output.data_ptr())

    def call() -> torch.Tensor:
        session.run_with_iobinding(binding)
        return output

    return call


def _model(workload: ConvWorkload, w: Any) -> bytes:
    from onnx import TensorProto, helper, numpy_helper

    node = helper.make_node(
        "Conv",
        ["x", "w"],
        ["y"],
        strides=workload.stride,
        pads=workload.padding,
        dilations=workload.dilation,
        group=workload.groups,
    )
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, workload.x_shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, workload.output_shape)
    graph = helper.make_graph([node], "convolution", [x], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())
