"""Nodes of an ONNX graph that compute constants, computed before the graph is imported.

Exporters leave weights that are made of others (transposed, dequantized, broadcast from a number) and shapes that are
put together from numbers; the importer wants many of these as constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .constants import Array

if TYPE_CHECKING:
    import onnx

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators whose results differ from run to run."""

UNKNOWN = (NotImplementedError, RuntimeError, TypeError, ValueError, LookupError, AttributeError)
"""What the reference evaluator has been seen to raise for what it cannot compute."""


def fold_nodes(graph: onnx.GraphProto, opset: int) -> tuple[onnx.GraphProto, dict[str, Array]]:
    """The graph without its initializers and without nodes that compute constants, and the values of these nodes.

    Before: `w = Transpose(weight)`, `y = Conv(x, w)`. After: `y = Conv(x, w)`, with w among the values.
    """
    import onnx

    known = {tensor.name: tensor for tensor in graph.initializer}
    values: dict[str, Array] = {}
    left = []
    for node in graph.node:
        results = None
        if all(name in values or name in known for name in node.input if name) and _is_foldable(node):
            inputs = {name: _value(name, values, known) for name in node.input if name}
            results = _computed(node, inputs, opset)
        if results is None:
            left.append(node)
        else:
            values.update(results)
    read = {name for node in left for name in node.input} | {output.name for output in graph.output}
    slim = onnx.GraphProto(name=graph.name, node=left, input=graph.input, output=graph.output)
    # Subgraphs read names of the graph around them, too.
    has_subgraphs = any(attribute.HasField("g") for node in left for attribute in node.attribute)
    return slim, {name: value for name, value in values.items() if name in read or has_subgraphs}


def _is_foldable(node: onnx.NodeProto) -> bool:
    return (
        node.domain in ("", "ai.onnx")
        and node.op_type not in RANDOM
        and not any(attribute.HasField("g") for attribute in node.attribute)
    )


def _value(name: str, values: dict[str, Array], known: dict[str, onnx.TensorProto]) -> Array:
    from onnx import numpy_helper

    if name not in values:
        values[name] = numpy_helper.to_array(known[name])
    return values[name]


def _computed(node: onnx.NodeProto, inputs: dict[str, Array], opset: int) -> dict[str, Array] | None:
    """The node's outputs by name; None where the reference evaluator cannot tell, or they are no tensors."""
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.output if name]
    try:
        results = ReferenceEvaluator(node, opsets={"": opset}).run(names, inputs)
    except UNKNOWN:
        return None
    if not all(isinstance(result, (np.ndarray, np.generic)) for result in results):
        return None
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}
