"""Folding of an ONNX graph: nodes that compute constants are computed before the graph is imported.

Exporters leave weights that are computed from others (transposed, dequantized, broadcast from a number) and shapes that
are put together from those of tensors; the importer wants many of these as constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .constants import Array
from .size_names import identifier, identifiers

if TYPE_CHECKING:
    import onnx

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators whose results differ from run to run."""

OF_SHAPES = ("Shape", "Size")
"""Operators that read no elements of their operand."""

CHOOSING = ("Gather", "Slice")
"""Operators whose results are elements of their first operand."""

NO_SIZE = -1
"""The number in the place of a size that is known only when the model runs."""

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
    inputs = _with_shapes(graph.input, shapes)
    left, count = list(graph.node), -1
    while len(left) != count:  # what is known now may be the shape of more
        count = len(left)
        left = _left(model, left, _shapes(model, left, inputs, values), known, values, opset)
        if not any(node.op_type in OF_SHAPES for node in left):
            break
    slim = onnx.GraphProto(name=graph.name, node=left, input=inputs, output=graph.output)
    return slim, {name: value for name, value in values.items() if name not in known}


def _left(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, tuple[int, ...]],
    known: Mapping[str, onnx.TensorProto],
    values: dict[str, Array],
    opset: int,
) -> list[onnx.NodeProto]:
    """Return the nodes that do not compute constants; add the values of the others."""
    left, chosen_from = [], dict[str, Array]()
    for node in nodes:
        operands = [name for name in node.input if name]
        results = None
        if node.op_type in OF_SHAPES and operands[0] in shapes:
            # The evaluator looks at the shape alone, so elements need no memory.
            shape = shapes[operands[0]]
            if NO_SIZE not in shape:
                results = _computed(node, {operands[0]: np.broadcast_to(np.float32(0), shape)}, opset)
            elif node.op_type == "Shape" and not node.attribute:
                chosen_from[node.output[0]] = np.array(shape, np.int64)
        elif _is_foldable(node) and all(name in values or name in known for name in operands):
            results = _computed(node, {name: _value(name, values, known) for name in operands}, opset)
        elif node.op_type in CHOOSING and operands[0] in chosen_from:
            others = operands[1:]
            if all(name in values or name in known for name in others):
                given = {name: _value(name, values, known) for name in others}
                results = _computed(node, {operands[0]: chosen_from[operands[0]], **given}, opset)
            if results is not None and any((result == NO_SIZE).any() for result in results.values()):
                results = None
        if results is None:
            left.append(node)
        else:
            values.update(results)
    return left


def _shapes(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    values: Mapping[str, Array],
) -> dict[str, tuple[int, ...]]:
    """Return the shapes whose number of sizes is known, by tensor, for the model with these inputs, nodes and values.

    There are none if no node reads shapes. A size that is known only when the model runs is `NO_SIZE`.
    """
    import onnx

    graph = model.graph
    if not any(node.op_type in OF_SHAPES for node in nodes):
        return {}
    given = {value.name for value in inputs}
    # Weights stay out of it, which may be more than inference can be given.
    short = [tensor for tensor in graph.initializer if prod(tensor.dims) <= LONGEST_SHAPE]
    names = {tensor.name for tensor in graph.initializer}
    computed = {name: value for name, value in values.items() if name not in names}
    short += [onnx.numpy_helper.from_array(each, name) for name, each in computed.items() if each.size <= LONGEST_SHAPE]
    weights = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if tensor.name not in given and prod(tensor.dims) > LONGEST_SHAPE
    ]
    weights += [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in computed.items()
        if each.size > LONGEST_SHAPE
    ]
    outputs = [onnx.ValueInfoProto(name=value.name) for value in graph.output]
    slim = onnx.GraphProto(name=graph.name, node=nodes, input=[*inputs, *weights], output=outputs, initializer=short)
    inferred = onnx.shape_inference.infer_shapes(
        onnx.ModelProto(ir_version=model.ir_version, graph=slim, opset_import=model.opset_import), data_prop=True
    )
    found = {}
    for value in [*inferred.graph.input, *inferred.graph.value_info]:
        if value.type.tensor_type.HasField("shape"):
            sizes = value.type.tensor_type.shape.dim
            found[value.name] = tuple(size.dim_value if size.HasField("dim_value") else NO_SIZE for size in sizes)
    return found


def _with_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]
) -> list[onnx.ValueInfoProto]:
    """Return inputs with the shapes that replace their own, and with an identifier for each open size of the others.

    To Relax all sizes without a name would be "?", and a name may be an expression for it, or a word of Python.
    """
    import onnx

    sizes = {
        value.name: [size.dim_value if size.HasField("dim_value") else size.dim_param for size in _dims(value)]
        for value in inputs
        if value.name not in shapes
    }
    given = {size for shape in shapes.values() for size in shape if isinstance(size, str)}
    names = identifiers((size for shape in sizes.values() for size in shape if isinstance(size, str) and size), given)
    named = []
    for value in inputs:
        if value.name in shapes:
            element = value.type.tensor_type.elem_type
            named.append(onnx.helper.make_tensor_value_info(value.name, element, shapes[value.name]))
            continue
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        for axis, size in enumerate(_dims(copy)):
            if not size.HasField("dim_value"):
                size.dim_param = names.get(size.dim_param) or identifier(f"{value.name}_{axis}")
        named.append(copy)
    return named


def _dims(value: onnx.ValueInfoProto) -> list[Any]:
    return list(value.type.tensor_type.shape.dim)


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
