"""Networks built for CUDA without a GPU: their source has to compile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest
import tvm
from network_graph import Graph
from onnx import helper, numpy_helper

import tvmconv
from tvmconv import ConvWorkload, cuda, lowering
from tvmconv.dispatch import select
from tvmconv.network.kernels import use_kernels
from tvmconv.network.packing import split_packing
from tvmconv.network.separation import separate_convolutions
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin


@pytest.mark.parametrize("parts", [1, 2])
def test_kernel_with_the_weight_packed_ahead(parts: int) -> None:
    workload = ConvWorkload.conv2d((2, 16, 9, 11), (24, 16, 3, 3), padding=1, shift=True, residual=True)
    target, name = resolve_target({"kind": "cuda", "arch": "sm_90"}), lowering.KERNEL_NAME
    selection = select(workload, target)
    selection = select(workload, target, replace(selection.config, parts=parts))
    kernel, packing = split_packing(lowering.lower(workload, selection, target, name))
    assert packing is not None
    operands = random_operands(workload)
    packed = packing(operands["w"])
    assert packed.shape != workload.w_shape
    tensors = {key: tvm.runtime.tensor(array) for key, array in operands.items()}
    executable = lowering.build(tvm.IRModule({name: serial_twin(kernel)}), resolve_target("llvm"))
    executable[name](*{**tensors, "w": packed}.values())
    check_result(workload, operands, tensors["output"].numpy())


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
    mod, layers = use_kernels(model.mod, target)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/depthwise", "tvmconv cuda/direct"]
    (device_module,) = lowering.build(mod, target).mod.imports[0].imports
    kernels = cuda.kernel_resources(str(device_module.inspect_source()), "sm_90")
    assert {kernel.name for kernel in kernels} == {"tvmconv_depthwise_0_kernel", "tvmconv_direct_1_kernel"}


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
