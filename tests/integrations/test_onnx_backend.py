"""The backend of ONNX that runs tvmconv."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.integrations import onnx_backend
from tvmconv.testing import check_result, random_operands


def relu(shape: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_kinds_of_inputs() -> None:
    x = np.array([[-1, 2]], "float32")
    prepared = onnx_backend.prepare(relu((1, 2)))
    for inputs in (x, [x], {"x": x}):
        (y,) = prepared.run(inputs)
        assert y.tolist() == [[0, 2]]
    assert onnx_backend.run_model(relu((1, 2)), [x])[0].tolist() == [[0, 2]]


def test_any_batch() -> None:
    """A model with an open batch is prepared once, with kernels of tvmconv."""
    workload = ConvWorkload.conv2d((3, 4, 9, 11), (8, 4, 3, 3))
    graph, operands = Graph(("n", 4, 9, 11)), random_operands(workload)
    model = graph.model(graph.node("Conv", "x", graph.constant(operands["w"]), pads=[1, 1, 1, 1]))
    prepared = onnx_backend.prepare(onnx.shape_inference.infer_shapes(model))
    (y,) = prepared.run([operands["x"]])
    check_result(workload, operands, y)
    (first,) = prepared.run({"x": operands["x"][:1]})
    np.testing.assert_array_equal(first, y[:1])
    assert [layer.kernel for layer in prepared.network.layers] == ["tvmconv cpu/direct"]


def test_one_node() -> None:
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = onnx_backend.run_node(clip, [np.array([-1, 2, 9], "float32"), np.float32(3)])
    assert y.tolist() == [-1, 2, 3]
    (y,) = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.float32([-1, 2])], opset_version=14)
    assert y.tolist() == [0, 2]


def test_a_convolution_of_bfloat16() -> None:
    workload = ConvWorkload.conv2d((2, 8, 9, 11), (16, 8, 3, 3), dtype="bfloat16")
    graph, operands = Graph((2, 8, 9, 11), "bfloat16", opset=22), random_operands(workload)
    weight = graph.constant(operands["w"])
    model = graph.model(graph.node("Conv", "x", weight, pads=[1, 1, 1, 1]))
    prepared = onnx_backend.prepare(onnx.shape_inference.infer_shapes(model))
    x = numpy_helper.to_array(numpy_helper.from_array(operands["x"]))
    (y,) = prepared.run([x])
    check_result(workload, operands, y)
    (again,) = prepared.run({"x": x})
    assert np.array_equal(again, y)


def test_what_it_supports() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.is_compatible(relu((1, 2)))
    unknown = relu((1, 2))
    unknown.graph.node[0].op_type = "Swirl"
    assert not onnx_backend.is_compatible(unknown)
