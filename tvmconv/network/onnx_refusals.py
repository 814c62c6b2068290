"""What cannot be imported from ONNX: nodes that Relax would make something else of without a word, and what helps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..errors import UnsupportedModelError
from .importer_errors import unsupported

if TYPE_CHECKING:
    import onnx

QDQ = "export the model in Q/DQ form (QuantizeLinear and DequantizeLinear around {})"

HINTS = {
    "BatchNormalization": "export the model in eval mode",
    "ConvInteger": QDQ.format("Conv"),
    "ConvTranspose": "give its padding as `pads` and `output_padding`",
    "Dropout": "export the model in eval mode",
    "MaxPool": "give its padding as `pads`",
    "QLinearConv": QDQ.format("Conv"),
    "QLinearMatMul": QDQ.format("MatMul"),
    "Upsample": "export the model with opset 11 or later, which has Resize",
}
"""What helps with an operator that Relax does not have or gets wrong."""

UNKNOWN_HINT = "export the model without it, or replace it by operators that Relax has"
FAILED_HINT = "export the model with static shapes, with another opset, or without this operator"


def _attribute(node: onnx.NodeProto, name: str) -> object:
    import onnx

    found = [attribute for attribute in node.attribute if attribute.name == name]
    return onnx.helper.get_attribute_value(found[0]) if found else None


Misread = tuple[str, Callable[["onnx.NodeProto"], bool], str]

MISREAD: tuple[Misread, ...] = (
    ("BatchNormalization", lambda node: _attribute(node, "training_mode") == 1, "Relax ignores its training_mode"),
    ("IsInf", lambda node: _attribute(node, "detect_negative") == 0, "Relax ignores its detect_negative"),
    ("IsInf", lambda node: _attribute(node, "detect_positive") == 0, "Relax ignores its detect_positive"),
    (
        "MaxPool",
        lambda node: _attribute(node, "auto_pad") == b"SAME_LOWER",
        "Relax gets the shape of auto_pad SAME_LOWER wrong",
    ),
    ("RoiAlign", lambda node: _attribute(node, "mode") == b"max", "Relax ignores its mode"),
    ("SpaceToDepth", lambda node: _attribute(node, "mode") == b"CRD", "Relax ignores its mode"),
)
"""An operator, whether Relax misreads a node of it, and how."""

FIRST_OUTPUT = ("Dropout", "LayerNormalization")
"""Operators whose further outputs Relax gets wrong."""

BY_VALUE = {"Expand": (1,), "NonMaxSuppression": (2, 3, 4)}
"""Operators and those of their operands that Relax gets wrong where they are inputs of the model."""


def refuse_misread(graph: onnx.GraphProto) -> None:
    """Raises `UnsupportedModelError` for a graph with nodes that Relax's importer would misread."""
    for operator, is_misread, problem in MISREAD:
        if nodes := [node for node in graph.node if node.op_type == operator and is_misread(node)]:
            raise unsupported_nodes(nodes, problem)
    read = {name for node in graph.node for name in node.input} | {value.name for value in graph.output}
    of_kind = [node for node in graph.node if node.op_type in FIRST_OUTPUT]
    if nodes := [node for node in of_kind if read & set(node.output[1:]) - {""}]:
        raise unsupported_nodes(nodes, "Relax has its first output only")
    inputs = {value.name for value in graph.input}
    for operator, operands in BY_VALUE.items():
        of_kind = [node for node in graph.node if node.op_type == operator]
        if nodes := [node for node in of_kind if inputs & {node.input[i] for i in operands if i < len(node.input)}]:
            raise unsupported_nodes(nodes, "Relax needs constants where the model has inputs")


def unsupported_nodes(nodes: Sequence[onnx.NodeProto], problem: str, hint: str | None = None) -> UnsupportedModelError:
    """The error for nodes that cannot be imported; there may be none to name."""
    found = [f"{node.op_type} (node {node.name or node.output[0]!r})" for node in nodes]
    hints = dict.fromkeys(HINTS.get(node.op_type, UNKNOWN_HINT) for node in nodes)
    return unsupported(found, problem, hint or "; ".join(hints) or UNKNOWN_HINT)
