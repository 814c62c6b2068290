"""Recurrent layers of ONNX in networks on a CPU, and their kernels for GPUs as serial code."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import tirx

import tvmconv
from tests.network.recurrence.recurrent_cases import CASES, EVERY, GATES, Case
from tests.shared.network_graph import Graph
from tests.shared.passes import lower_recurrences
from tvmconv.lowering import build
from tvmconv.lowering.serial import TWIN_TARGET, serial_twin
from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.targets import cuda, resolve_target

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})

TOLERANCE = {"float16": 2e-3, "float32": 3e-6, "float64": 1e-13}


def check(case: Case, network: tvmconv.Network, tensors: dict[str, Any], dtype: str = "float32") -> None:
    """Check a network's results against float64."""
    for actual, wanted in zip(network(**case.feeds(tensors)), case.expected(tensors), strict=True):
        assert str(actual.dtype) == dtype
        np.testing.assert_allclose(actual, wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layers_are_right(case: Case) -> None:
    tensors = case.tensors()
    check(case, tvmconv.build(case.model(tensors), CPU), tensors)


@pytest.mark.parametrize("case", [CASES[1], CASES[5], CASES[7], CASES[10]], ids=str)
def test_kernels_for_gpus_are_right(case: Case) -> None:
    tensors = case.tensors()
    source = tvmconv.import_model(case.model(tensors))
    mod, _ = lower_recurrences(source.mod, SM_90)
    for var, func in mod.functions.items():
        if isinstance(func, tirx.PrimFunc):
            mod[var] = serial_twin(func)
    executable = build(mod, resolve_target(TWIN_TARGET))
    check(case, tvmconv.network.Network(executable, str(CPU), source.inputs, source.outputs, (), ()), tensors)


@pytest.mark.skipif(not cuda.has_compiler(), reason="there is no compiler for CUDA here")
@pytest.mark.parametrize("case", [CASES[1], CASES[5]], ids=str)
@pytest.mark.parametrize("sizes", [None, ("steps", "batch")], ids=["fixed", "open"])
def test_kernels_for_gpus_can_be_compiled(case: Case, sizes: Any) -> None:
    network = tvmconv.build(case.model(case.tensors(), sizes=sizes), SM_90)
    name = f"tvmconv_{case.operator.lower()}_0_kernel"
    sources = [source for source in cuda.uncompiled(network._executable.mod) if name in source]
    kernels = [kernel for source in sources for kernel in cuda.assembled(source, "sm_90")[0]]
    assert [kernel.name for kernel in kernels] == [name]
    assert all(kernel.spill_store_bytes == 0 for kernel in kernels)


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_one_network_takes_any_number_of_steps_and_rows(operator: str) -> None:
    operands = EVERY if operator == "LSTM" else ("B",)
    case = Case(operator, 33, direction="bidirectional", operands=operands)
    weights = case.tensors()
    network = tvmconv.build(case.model(weights, sizes=("steps", "batch")), CPU)
    for steps, batch in ((6, 3), (1, 1), (9, 8), (2, 7)):
        other = Case(operator, 33, batch, steps, direction="bidirectional", operands=operands)
        inputs = other.tensors(seed=steps)
        check(other, network, {**weights, **{name: inputs[name] for name in other.feeds(inputs)}})


@pytest.mark.parametrize("dtype", ["float16", "float64"])
@pytest.mark.parametrize("operator", ["LSTM", "GRU", "RNN"])
def test_other_types_are_right(operator: str, dtype: str) -> None:
    case = Case(operator, 12, direction="bidirectional", operands=("B", "initial_h"))
    tensors = {name: value.astype(dtype) for name, value in case.tensors().items()}
    check(case, tvmconv.build(case.model(tensors), CPU), tensors, dtype)


def test_weights_may_be_computed() -> None:
    case = Case("LSTM", direction="bidirectional", operands=EVERY)
    tensors = case.tensors()
    model = case.model(tensors)
    model.graph.input.extend(
        helper.make_tensor_value_info(each.name, each.data_type, each.dims) for each in model.graph.initializer
    )
    del model.graph.initializer[:]
    results = tvmconv.build(model, CPU)(**{**tensors, **case.feeds(tensors)})
    for actual, wanted in zip(results, case.expected(tensors), strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=3e-6, atol=3e-6)


def test_results_may_be_left_out() -> None:
    case = Case("GRU")
    tensors = case.tensors()
    model = case.model(tensors)
    model.graph.node[0].output[0] = ""
    del model.graph.output[0]
    last = tvmconv.build(model, CPU)(**case.feeds(tensors))
    np.testing.assert_allclose(last, case.expected(tensors)[1], rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize(("mcpu", "hidden"), [("x86-64", 4), ("haswell", 8), ("haswell", 24), ("native", 40)])
@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_blocks_behind_the_last_channel_are_not_stored(operator: str, mcpu: str, hidden: int) -> None:
    """Channels are padded to 16, which are several vectors of a CPU without AVX-512: some have no channel at all."""
    case = Case(operator, hidden)
    tensors = case.tensors()
    target = CPU if mcpu == "native" else resolve_target({"kind": "llvm", "mcpu": mcpu})
    network = tvmconv.build(case.model(tensors), target)
    for actual, expected in zip(network(**case.feeds(tensors)), case.expected(tensors), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=3e-6, atol=3e-6)


@pytest.mark.parametrize("by_column", [False, True], ids=["tensor", "column"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantized_layers_round_as_onnx_runtime_does(dtype: str, by_column: bool) -> None:
    ort = pytest.importorskip("onnxruntime")
    model, x = quantized(dtype, by_column)
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1  # of several threads each rounds rows of its own by their own bounds
    expected = ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})
    for actual, wanted in zip(tvmconv.build(model, CPU)(x), expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("operator", ["LSTM", "GRU"])
def test_two_layers_of_one_kind_behind_an_expression(operator: str) -> None:
    """Layers of different sizes have functions of their own, whose steps, (n + 1) // 2, are no open size."""
    ort = pytest.importorskip("onnxruntime")
    graph = Graph(("n", 2, 6))
    graph.nodes += [helper.make_node("Transpose", ["x"], ["t"], perm=[1, 2, 0])]
    pooled = graph.node("MaxPool", "t", kernel_shape=[1], strides=[2])
    y, inputs, axes = graph.node("Transpose", pooled, perm=[2, 0, 1]), 6, graph.constant([1], "int64")
    for hidden in (8, 8, 20):
        gates = GATES[operator] * hidden
        weights = graph.random(1, gates, inputs, scale=0.3), graph.random(1, gates, hidden, scale=0.3)
        y, inputs = graph.node("Squeeze", graph.node(operator, y, *weights, hidden_size=hidden), axes), hidden
    model = graph.model(y)
    x = np.random.default_rng(5).standard_normal((9, 2, 6)).astype("float32")
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    network = tvmconv.build(model, CPU)
    np.testing.assert_allclose(network(x), session.run(None, {"x": x})[0], rtol=0, atol=1e-6)
    steps = [row.name for row in network.profile(x, repeat=1).rows if row.kernel == "tvmconv cpu/recurrence"]
    assert len(steps) == 3
    assert all(name.startswith(operator) for name in steps)


def test_quantized_layers_are_refused_for_gpus() -> None:
    with pytest.raises(UnsupportedModelError, match="layer.*CPUs alone"):
        tvmconv.build(quantized("int8", False)[0], SM_90)


def quantized(dtype: str, by_column: bool) -> tuple[Any, Any]:
    """Return a model of ONNX Runtime's DynamicQuantizeLSTM, and its input."""
    rng, directions, inputs, hidden = np.random.default_rng(3), 2, 12, 24
    shape = (directions, 4 * hidden) if by_column else (directions,)
    # ONNX Runtime takes no other zero points, and its sums of two products saturate on CPUs without VNNI.
    (low, high), point = ((-63, 64), 0) if dtype == "int8" else ((0, 255), 131)
    constants = {
        "w": rng.integers(low, high, (directions, inputs, 4 * hidden)).astype(dtype),
        "r": rng.integers(low, high, (directions, hidden, 4 * hidden)).astype(dtype),
        "b": rng.standard_normal((directions, 8 * hidden), dtype="float32"),
        "w_scale": rng.uniform(0.001, 0.005, shape).astype("float32"),
        "w_zero": np.full(shape, point, dtype),
        "r_scale": rng.uniform(0.001, 0.005, shape).astype("float32"),
        "r_zero": np.full(shape, point, dtype),
    }
    x = rng.standard_normal((7, 3, inputs), dtype="float32")
    names = ["x", "w", "r", "b", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"]
    node = helper.make_node(
        "DynamicQuantizeLSTM", names, ["y", "h", "c"], "layer", domain="com.microsoft", hidden_size=hidden,
        direction="bidirectional",
    )  # fmt: skip
    graph = helper.make_graph(
        [node],
        "quantized",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "yhc"],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 14), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), x


@pytest.mark.parametrize(
    ("attributes", "problem"),
    [
        ({"activations": ["ScaledTanh", "Tanh", "Tanh"]}, "'scaledtanh' has no activation_alpha"),
        ({"activations": ["Gelu", "Tanh", "Tanh"]}, "'gelu' is none of ONNX's"),
        ({"activations": ["Tanh"]}, "1 activations, where LSTM has 3"),
        ({"direction": "sideways"}, "direction is 'sideways'"),
    ],
    ids=["numbers", "unknown", "count", "direction"],
)
def test_refusals_name_the_node(attributes: dict[str, Any], problem: str) -> None:
    case = Case("LSTM", attributes=attributes)
    with pytest.raises(UnsupportedModelError, match=rf"LSTM \(node 'layer'\).*{problem}"):
        tvmconv.import_model(case.model(case.tensors()))


def test_lengths_beyond_the_steps_read_nothing_else() -> None:
    case = Case("LSTM", direction="reverse", operands=("B", "sequence_lens"))
    tensors = case.tensors()
    network = tvmconv.build(case.model(tensors), CPU)
    tensors["sequence_lens"] = np.array([6, 2**31 - 1, 7], "int32")
    actual = network(**case.feeds(tensors))
    tensors["sequence_lens"] = np.full(3, 6, "int32")
    np.testing.assert_array_equal(actual[0], network(**case.feeds(tensors))[0])
