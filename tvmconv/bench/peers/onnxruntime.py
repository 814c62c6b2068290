"""A peer that runs ONNX Runtime on a CPU."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Call, Operands, Peer, not_installed

if TYPE_CHECKING:
    import tvm


class OnnxRuntime(Peer):
    """A model of one Conv node whose weight is a constant, which the session packs as it likes when it is created."""

    name = "onnxruntime"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if backend_of(target).on_gpu or workload.dtype != "float32" or workload.epilogue != Epilogue():
            return "one Conv node in float32 on a CPU"
        return not_installed("onnx", "onnxruntime")

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from onnxruntime.capi import onnxruntime_pybind11_state as errors

        try:
            return [bound(_model(workload, operands["w"]), operands["x"]) for operands in sets]
        except (errors.Fail, errors.InvalidArgument, errors.NotImplemented, errors.RuntimeException) as error:
            raise RuntimeError(str(error)) from None


def session_of(model: bytes) -> Any:
    """Return a session of ONNX Runtime for a model on a CPU, with PyTorch's number of threads."""
    import onnxruntime
    import torch

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def bound(model: bytes, x: Any) -> Call:
    """Return a call of a session for a model of x and y, whose arrays are bound, so that nothing is copied."""
    import numpy as np
    import torch

    session = session_of(model)
    output = torch.empty(session.get_outputs()[0].shape)
    binding = session.io_binding()
    binding.bind_input("x", "cpu", 0, np.float32, tuple(x.shape), x.data_ptr())
    binding.bind_output("y", "cpu", 0, np.float32, tuple(output.shape), output.data_ptr())

    def call(kept: Any = x) -> torch.Tensor:  # the session reads its memory
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
    weight = numpy_helper.from_array(w.reshape(workload.out_channels, -1, *workload.kernel).numpy(), "w")
    shapes = {"x": workload.x_shape, "y": workload.output_shape}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph([node], "convolution", [x], [y], [weight])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    return bytes(model.SerializeToString())
