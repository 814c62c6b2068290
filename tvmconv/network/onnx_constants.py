"""Folding of an ONNX graph: nodes that compute constants are computed before the graph is imported.

Exporters leave weights that are computed from others (transposed, dequantized, broadcast from a number) and shapes that
are put together from those of tensors; the importer wants many of these as constants.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from .constants import Array

if TYPE_CHECKING:
    import onnx

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators whose results differ from run to run."""

OF_SHAPES = ("Shape", "Size")
"""Operators that read no elements of their operand."""

LONGEST_SHAPE = 64
"""The largest number of elements of a constant that may be a shape; longer ones are weights."""

QUANTIZED = ("DequantizeLinear", "QuantizeLinear")
"""Operators whose integers, scales and zero points are read later."""

UNKNOWN = (NotImplementedError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, MemoryError)
"""The errors that the reference evaluator has been seen to raise for nodes that it cannot compute."""


def fold_nodes(
    model: onnx.ModelProto, opset: int, shapes: Mapping[str, Sequence[int | str]]
) -> tuple[onnx.GraphProto, dict[str, Array]]:
    """Return the graph without initializers and without nodes that compute constants, and these nodes' values.

    `shapes` are the shapes of inputs that replace their own, with names for open sizes.

    Before: `w = Transpose(weight)`, `y = Conv(x, w)`. After: `y = Conv(x, w)`, with w among the values.
    """
    import onnx

    graph = model.graph
    known = {tensor.name: tensor for tensor in graph.initializer}
    values: dict[str, Array] = {}
    inputs = [_reshaped(value, shapes[value.name]) if value.name in shapes else _named(value) for value in graph.input]
    static = _static_shapes(model, inputs)
    left = []
    for node in graph.node:
        operands = [name for name in node.input if name]
        results = None
        if node.op_type in OF_SHAPES and operands[0] in static:
            # The evaluator looks at the shape alone, so elements need no memory.
            results = _computed(node, {operands[0]: np.broadcast_to(np.float32(0), static[operands[0]])}, opset)
        elif _is_foldable(node) and all(name in values or name in known for name in operands):
            results = _computed(node, {name: _value(name, values, known) for name in operands}, opset)
        if results is None:
            left.append(node)
        else:
            values.update(results)
    slim = onnx.GraphProto(name=graph.name, node=left, input=inputs, output=graph.output)
    return slim, {name: value for name, value in values.items() if name not in known}


def _static_shapes(model: onnx.ModelProto, inputs: Sequence[onnx.ValueInfoProto]) -> dict[str, tuple[int, ...]]:
    """Return the shapes that consist of numbers only, by tensor, for the model with these inputs.

    There are none if the graph has no node that reads shapes.
    """
    import onnx

    graph = model.graph
    if not any(node.op_type in OF_SHAPES for node in graph.node):
        return {}
    given = {value.name for value in inputs}
    # Weights stay out of it, which may be more than inference can be given.
    short = [tensor for tensor in graph.initializer if prod(tensor.dims) <= LONGEST_SHAPE]
    weights = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in given and prod(tensor.dims) > LONGEST_SHAPE
    ]
    outputs = [onnx.ValueInfoProto(name=value.name) for value in graph.output]
    slim = onnx.GraphProto(
        name=graph.name, node=graph.node, input=[*inputs, *weights], output=outputs, initializer=short
    )
    inferred = onnx.shape_inference.infer_shapes(
        onnx.ModelProto(ir_version=model.ir_version, graph=slim, opset_import=model.opset_import), data_prop=True
    )
    static = {}
    for value in [*inferred.graph.input, *inferred.graph.value_info]:
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            if all(size.HasField("dim_value") for size in sizes):
                static[value.name] = tuple(size.dim_value for size in sizes)
    return static


def _reshaped(value: onnx.ValueInfoProto, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    import onnx

    return onnx.helper.make_tensor_value_info(value.name, value.type.tensor_type.elem_type, shape)


def _named(value: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    """Return an input with a name for each open size that has none; to Relax all of these would be "?"."""
    import onnx

    named = onnx.ValueInfoProto()
    named.CopyFrom(value)
    for axis, size in enumerate(named.type.tensor_type.shape.dim):
        if not (size.HasField("dim_value") or size.dim_param):
            size.dim_param = re.sub(r"\W", "_", f"{value.name}_{axis}")
    return named


def _is_foldable(node: onnx.NodeProto) -> bool:
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in (*RANDOM, *QUANTIZED)
        and not any(attribute.HasField("g") for attribute in node.attribute)
    )


def _value(name: str, values: dict[str, Array], known: Mapping[str, onnx.TensorProto]) -> Array:
    from onnx import numpy_helper

    if name not in values:
        values[name] = numpy_helper.to_array(known[name])
    return values[name]


def _computed(node: onnx.NodeProto, inputs: dict[str, Array], opset: int) -> dict[str, Array] | None:
    """Return the node's outputs by name; None if the reference evaluator cannot compute them or they are no tensors."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.output if name]
    try:
        results = ReferenceEvaluator(node, opsets={"": opset}).run(names, inputs)
    except UNKNOWN:
        return None
    if not all(isinstance(result, (np.ndarray, np.generic)) for result in results):
        return None
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}
