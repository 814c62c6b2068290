"""Inlining of ONNX's nodes that other nodes define: functions of the model, and operators with a definition."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from .refusals import is_known

if TYPE_CHECKING:
    import onnx


def inline_functions(model: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """Return the model with definitions in place of nodes that are not among the operators and that ONNX defines.

    Before: `y = Celu(x)`. After: `y = Max(0, x) + Min(0, alpha * (exp(x / alpha) - 1))`, node by node. Where onnx
    itself cannot do so, the model stays as it is, and the importer names what it does not know.
    """
    from onnx import ModelProto
    from onnx.helper import make_tensor_value_info
    from onnx.inliner import inline_selected_functions

    functions = {(function.domain, function.name) for function in model.functions}
    functions |= {(node.domain, node.op_type) for node in model.graph.node if not is_known(node, operators)}
    if not functions:
        return model
    typed = ModelProto()
    typed.CopyFrom(model)  # a definition that depends on types finds those of constants here alone
    known = {value.name for value in (*model.graph.input, *model.graph.value_info)}
    typed.graph.value_info.extend(
        make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in model.graph.initializer
        if tensor.name not in known
    )
    try:
        return inline_selected_functions(typed, sorted(functions), inline_schema_functions=True)
    except RuntimeError:  # a definition that needs the type of an operand that is left out
        return model


def nodes_by_output(model: onnx.ModelProto, inlined: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the model's nodes by the tensors that they make, including tensors made inside inlined definitions."""
    nodes = {name: node for node in model.graph.node for name in node.output}
    for node in reversed(inlined.graph.node):
        whole = next((nodes[name] for name in node.output if name in nodes), None)
        if whole is not None:  # what it reads and no other node of the model makes, was made for it
            nodes.update({name: whole for name in node.input if name not in nodes})
    return nodes
