"""Small ONNX graphs with random weights, for the tests of networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from tvm import relax


class Graph:
    """An ONNX graph that grows node by node, from one input "x"; each method returns the name of what it adds.

    The same calls with dtype "float64" give the graph of the reference: the weights are equal, but for rounding.
    """

    def __init__(self, x_shape: Sequence[int | str], dtype: str = "float32", opset: int = 17) -> None:
        self.dtype, self.opset = dtype, opset
        self.nodes: list[onnx.NodeProto] = []
        self.inputs = [self._value("x", x_shape)]
        self.weights: list[onnx.TensorProto] = []
        self._rng = np.random.default_rng(7)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [name], name=f"{operator.lower()}{len(self.nodes)}", **attributes)
        )
        return name

    def constant(self, values: Any, dtype: str | None = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(values, dtype or self.dtype), name))
        return name

    def random(self, *shape: int, scale: float = 1.0) -> str:
        # Rounded, so that every dtype holds the same numbers.
        return self.constant((scale * self._rng.standard_normal(shape)).astype("float16").astype("bfloat16"))

    def conv(self, x: str, w_shape: Sequence[int], bias: bool = False, **attributes: Any) -> str:
        # Scaled so that values keep their size from layer to layer, and so do their errors.
        weight = self.random(*w_shape, scale=prod(w_shape[1:]) ** -0.5)
        return self.node("Conv", x, weight, *([self.random(w_shape[0])] if bias else []), **attributes)

    def batch_norm(self, x: str, channels: int, **attributes: Any) -> str:
        variance = self.constant((0.5 + self._rng.random(channels)).astype("bfloat16"))
        gamma, beta, mean = (self.random(channels) for _ in range(3))
        return self.node("BatchNormalization", x, gamma, beta, mean, variance, **attributes)

    def clip(self, x: str, low: float | None, high: float | None) -> str:
        if self.opset < 11:
            bounds = {name: bound for name, bound in (("min", low), ("max", high)) if bound is not None}
            return self.node("Clip", x, **bounds)
        return self.node("Clip", x, *("" if bound is None else self.constant(bound) for bound in (low, high)))

    def model(self, *outputs: str) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes, "graph", self.inputs, [self._value(name, None) for name in outputs], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def _value(self, name: str, shape: Sequence[int | str] | None) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype)), shape)


def normal(*shape: int, seed: int = 3) -> np.ndarray:
    """Return random numbers in float32 for the input of a network."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def check_network(network: Callable[..., Any], model: onnx.ModelProto, x: np.ndarray, share: float = 4e-6) -> None:
    """Compare a network with what ONNX's own implementation makes of a model, which may be the same in float64.

    An error is at most this share of the largest number of its output.
    """
    exact = x.astype(helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type))
    found, expected = network(x), ReferenceEvaluator(model).run(None, {"x": exact})
    for y, reference in zip(found if isinstance(found, tuple) else (found,), expected, strict=True):
        assert y.shape == reference.shape
        np.testing.assert_allclose(y, reference, rtol=0, atol=share * np.abs(reference).max())


def relax_module(function: Callable[..., Any], *inputs: relax.Var) -> tvm.IRModule:
    """Return a module whose "main" has these inputs, and returns what a function makes of them."""
    builder = relax.BlockBuilder()
    with builder.function("main", list(inputs)):
        with builder.dataflow():
            result = function(*inputs)
            output = builder.emit_output(relax.Tuple(result) if isinstance(result, list) else result)
        builder.emit_func_output(output)
    return builder.get()


def operators(mod: tvm.IRModule) -> list[str]:
    """Return the names of the operators that "main" calls, in order."""
    names = []
    for block in mod["main"].body.blocks:
        names += [str(binding.value.op.name) for binding in block.bindings if isinstance(binding.value, relax.Call)]
    return names
