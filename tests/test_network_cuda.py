"""Networks built for CUDA without a GPU: their source has to compile, kernels of TVM and ours alike."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from network_graph import Graph
from onnx import helper, numpy_helper

import tvmconv
from tvmconv import cuda, lowering
from tvmconv.network.depthwise import use_depthwise_kernels
from tvmconv.network.separation import separate_convolutions
from tvmconv.targets import resolve_target


@pytest.mark.parametrize("name", ["x", "data.0", "gpu_0/data-0", "0"])
def test_source_compiles_whatever_the_input_is_called(name: str) -> None:
    weights = {"w": (4, 1, 3, 3), "v": (8, 4, 1, 1)}
    graph = helper.make_graph(
        [helper.make_node("Conv", [name, "w"], ["y"], group=4), helper.make_node("Conv", ["y", "v"], ["z"])],
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (1, 4, 8, 8))],
        [helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, (1, 8, 6, 6))],
        [numpy_helper.from_array(np.ones(shape, "float32"), weight) for weight, shape in weights.items()],
    )
    model = tvmconv.import_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10))
    assert model.inputs[0].name == name
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod, layers = use_depthwise_kernels(model.mod, target)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/depthwise", "TVM"]
    (device_module,) = lowering.build(mod, target).mod.imports[0].imports
    kernels = cuda.kernel_resources(str(device_module.inspect_source()), "sm_90")
    assert "tvmconv_depthwise_0_kernel" in [kernel.name for kernel in kernels]
    assert len(kernels) == 2


def test_convolutions_of_tvm_are_not_fused() -> None:
    """TVM schedules a fused grouped convolution wrong for a GPU; equal convolutions still share a function."""
    graph = Graph((1, 8, 9, 9))
    y = "x"
    for _ in range(2):
        y = graph.node("Relu", graph.batch_norm(graph.conv(y, (8, 4, 1, 1), group=2), 8))
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    mod = separate_convolutions(tvmconv.import_model(graph.model(y)).mod)
    (device_module,) = lowering.build(mod, target).mod.imports[0].imports
    source = str(device_module.inspect_source())
    kernels = [kernel.name for kernel in cuda.kernel_resources(source, "sm_90")]
    assert [name for name in kernels if "conv2d" in name] == ["conv2d_kernel"]
