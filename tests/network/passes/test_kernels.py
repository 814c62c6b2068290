"""The kernels in a network's module: their weights, those that convolutions share, and TVM's passes around them."""

from __future__ import annotations

import onnx
import pytest
import tvm
from onnx import numpy_helper
from tvm import relax

from tests.shared.network_graph import Graph, check_network, normal, operators
from tests.shared.passes import use_kernels
from tvmconv.dispatch import select
from tvmconv.lowering import build as build_module
from tvmconv.lowering import lower
from tvmconv.network import Network, build, import_model
from tvmconv.network.graph.constants import constant_value
from tvmconv.network.graph.graph import operator_name, rebind
from tvmconv.network.sites.batch_norm import simplify_batch_norms
from tvmconv.problem import Problem
from tvmconv.targets import cuda, resolve_target

DEPTHWISE = (8, 1, 3, 3)
AVX512 = resolve_target({"kind": "llvm", "mcpu": "znver5"})
"""A fixed target, since the choice of a convolution's template depends on the machine."""


def test_weights_are_packed_when_the_network_is_built() -> None:
    """A weight that is computed is packed in each call, by another kernel for the same workload."""
    graph = Graph((1, 8, 9, 11))
    y = graph.conv(graph.conv("x", (8, 8, 1, 1)), (8, 8, 1, 1))
    computed = graph.node("ReduceProd", "x", axes=[0, 2, 3], keepdims=1)
    model = graph.model(graph.node("Conv", y, graph.node("Mul", computed, graph.random(8, 1, 1, 1))))
    imported = import_model(model)
    assert [str(found.workload) for found in imported.convolutions()] == ["conv2d 1x8x9x11 -> 8, 1x1"] * 3
    mod, _ = use_kernels(imported.mod, AVX512)
    bindings = [binding.value for block in mod["main"].body.blocks for binding in block.bindings]
    calls = [value for value in bindings if operator_name(value) == "relax.call_tir"]
    first, second, third = (call.args[0].name_hint for call in calls)
    assert first == second != third
    assert first.startswith("tvmconv_pointwise_")
    *packed, left = (call.args[1][1] for call in calls)
    assert constant_value(left) is None
    for operand, weight in zip(packed, model.graph.initializer, strict=False):
        value = constant_value(operand)
        assert value is not None
        assert value.ndim > 4
        assert sorted(value[value != 0]) == sorted(numpy_helper.to_array(weight).ravel())
    check_network(build(imported), model, normal(1, 8, 9, 11))


def test_equal_workloads_share_a_kernel() -> None:
    graph = Graph((1, 8, 9, 11))
    first = graph.conv("x", DEPTHWISE, group=8, pads=[1, 1, 1, 1])
    second = graph.conv(first, DEPTHWISE, group=8, pads=[1, 1, 1, 1])
    third = graph.conv(second, DEPTHWISE, True, group=8, pads=[1, 1, 1, 1])
    imported = import_model(graph.model(third))
    before = imported.mod.script(show_meta=True)
    mod, layers = use_kernels(imported.mod, resolve_target("llvm"))
    assert len(mod.functions) == 3
    assert [layer.kernel for layer in layers] == ["tvmconv cpu/depthwise"] * 3
    assert imported.mod.script(show_meta=True) == before


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_tvm_fuses_around_the_kernels(target: str) -> None:
    graph = Graph((1, 8, 9, 11))
    y = graph.node("Relu", graph.node("Cos", graph.conv("x", DEPTHWISE, True, group=8, pads=[1, 1, 1, 1])))
    ours, others = kernels_called(build(graph.model(y), target))
    assert (ours.startswith("tvmconv_depthwise_"), others) == (True, "fused_tir_cos_relu")


def test_tvm_leaves_the_schedule_alone() -> None:
    graph = Graph((1, 8, 9, 11))
    network = build(graph.model(graph.node("Cos", graph.conv("x", DEPTHWISE, group=8, pads=[1, 1, 1, 1]))), "cuda")
    workload = network.layers[0].convolution.workload
    name = kernels_called(network)[0]
    kernel = lower(Problem(workload), select(Problem(workload), network.target), network.target, name)
    alone = build_module(tvm.IRModule({name: kernel}), network.target)
    (source,) = cuda.sources(alone.mod)
    assert f"{name}_kernel" in source
    assert source in cuda.sources(network._executable.mod)


def test_batch_norm_left_alone_is_fused_with_its_convolution() -> None:
    def model(dtype: str) -> onnx.ModelProto:
        graph = Graph((2, 4, 5, 6, 7), dtype)
        return graph.model(graph.node("Relu", graph.batch_norm(graph.conv("x", (8, 4, 3, 3, 3), True), 8)))

    imported = import_model(model("float32"))
    assert operators(simplify_batch_norms(imported.mod)) == [
        "relax.nn.conv3d", "relax.add", "relax.multiply", "relax.add", "relax.nn.relu"
    ]  # fmt: skip
    network = build(imported)
    assert kernels_called(network) == ["fused_conv3d_add_multiply_add1_relu"]
    check_network(network, model("float64"), normal(2, 4, 5, 6, 7))


def test_sizes_that_are_matched_stay_defined() -> None:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((2, 3), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            matched = builder.emit(relax.op.add(x, x))
            builder.match_cast(matched, relax.TensorType((2, 3), "float32"))
            output = builder.emit_output(relax.op.multiply(x, x))
        builder.emit_func_output(output)
    mod = rebind(builder.get(), {})
    relax.analysis.well_formed(mod)  # raises where a variable is not defined
    assert operators(mod)[-1] == "relax.multiply"


def kernels_called(network: Network) -> list[str]:
    """Return the functions that the network's instructions call, in the order of the first calls.

    TVM's runtime is left out.
    """
    lines = [line.split() for line in network._executable.as_text().splitlines()]
    called = [words[1] for words in lines if words[:1] == ["call"] and not words[1].startswith("vm.")]
    return list(dict.fromkeys(called))
