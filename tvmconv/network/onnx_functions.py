"""Nodes of an ONNX model that are defined by other nodes: functions of the model, and operators with a definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx

DIRECT = ("Constant", "If")
"""Operators that the importer takes without a converter."""


def inline_functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with the definition in the place of each node that the importer does not know and ONNX defines.

    Before: `y = Celu(x)`. After: `y = Max(0, x) + Min(0, alpha * (exp(x / alpha) - 1))`, node by node. Where onnx
    itself cannot do so, the model stays as it is, and the importer names what it does not know.
    """
    from onnx.inliner import inline_selected_functions
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    known = {*_get_convert_map(), *DIRECT}
    functions = {(function.domain, function.name) for function in model.functions}
    functions |= {(node.domain, node.op_type) for node in model.graph.node if node.op_type not in known}
    if not functions:
        return model
    try:
        return inline_selected_functions(model, sorted(functions), inline_schema_functions=True)
    except RuntimeError:  # a definition that needs the type of an operand that is left out
        return model
