"""Refusals of ONNX nodes that cannot be imported or that Relax would silently misread, and hints that help."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from tvm import relax

from tvmconv.problem.errors import UnsupportedModelError

from ...graph.constants import constant_value
from ...graph.faults import Refused, unsupported
from .node import Node

if TYPE_CHECKING:
    import onnx

HINTS = {
    "BatchNormalization": "export the model in eval mode",
    "ConvTranspose": "give its padding as `pads` and `output_padding`",
    "Dropout": "export the model in eval mode",
    "MaxPool": "give its padding as `pads`",
    "Upsample": "export the model with opset 11 or later, which has Resize",
}
"""Hints for operators that Relax does not have or gets wrong."""

UNKNOWN_HINT = "export the model without it, or with operators that Relax, TVM's form of networks, has"
FAILED_HINT = "export the model with static shapes, with another opset, or without this operator"


ELEMENT_TYPES = frozenset(
    (
        "bfloat16", "bool", "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16",
        "uint32", "uint64",
    )
)  # fmt: skip
"""The element types of a network's tensors; TVM computes narrower ones wrongly or not at all."""

MICROSOFTS = (
    "Attention", "BiasGelu", "DynamicQuantizeLSTM", "EmbedLayerNormalization", "FastGelu", "Gelu",
    "SkipLayerNormalization",
)  # fmt: skip
"""Operators of the domain com.microsoft that can be imported."""

OTHERS = ("Attention", "DynamicQuantizeLSTM")
"""Operators that are imported from that domain only, as ONNX may have other ones of the same name."""

Misread = tuple[str, Callable[[Node], bool], str]

SORTED = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
"""The element types that TVM sorts."""

MISREAD: tuple[Misread, ...] = (
    ("BatchNormalization", lambda node: node.attributes.get("training_mode") == 1, "Relax ignores its training_mode"),
    ("SequenceErase", lambda node: True, "Relax confuses the positions of sequences"),
    ("SequenceInsert", lambda node: True, "Relax confuses the positions of sequences"),
    (
        "TopK",
        lambda node: str(node.operands[0].ty.dtype) not in SORTED,
        "TVM does not sort elements of this type",
    ),
    ("RoiAlign", lambda node: node.text("mode", "avg") == "max", "Relax ignores its mode"),
    ("SpaceToDepth", lambda node: node.text("mode", "DCR") == "CRD", "Relax ignores its mode"),
)
"""Operators, each with a test whether Relax misreads a node of it, and the problem in words."""

BY_VALUE = {"NonMaxSuppression": (2, 3, 4)}
"""Operators and the indices of those operands that Relax gets wrong where they are no constants."""


def refuse_misread(node: Node) -> None:
    """Raise `Refused` for a node that Relax's importer would misread."""
    for operator, is_misread, problem in MISREAD:
        if node.operator == operator and is_misread(node):
            raise Refused(problem)
    for index in BY_VALUE.get(node.operator, ()):
        operand = node.operand(index)
        if operand is not None and isinstance(operand.ty, relax.TensorType) and constant_value(operand) is None:
            raise Refused("Relax needs constants where the model has inputs")


def refuse_dtype(result: relax.Expr) -> None:
    """Raise `Refused` if a node's result has an element type that tvmconv has not."""
    types = result.ty.fields if isinstance(result.ty, relax.TupleType) else [result.ty]
    for each in types:
        if isinstance(each, relax.TensorType) and each.dtype is not None and str(each.dtype) not in ELEMENT_TYPES:
            raise Refused(f"its output has elements of {each.dtype}, which tvmconv does not support")


def is_known(node: onnx.NodeProto, operators: Collection[str]) -> bool:
    """Return whether a node's operator can be imported; in another domain the same name means another operator."""
    if node.domain == "com.microsoft":
        return node.op_type in MICROSOFTS
    return node.domain in ("", "ai.onnx") and node.op_type in operators and node.op_type not in OTHERS


def refuse_values(
    inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto], nodes: Iterable[onnx.NodeProto]
) -> None:
    """Raise `Refused` for inputs or outputs that a network cannot have, with a node that reads or computes them."""
    odd = {value.name: "without elements, as it has a fixed size of 0" for value in inputs if _is_empty(value)}
    odd |= {value.name: problem for value in (*inputs, *outputs) if (problem := _problem(value))}
    for node in nodes:
        for name in (*node.input, *node.output):
            if name in odd:
                raise Refused(f"{name} is {odd[name]}", nodes=[node])


def refuse_constant(name: str, element_type: int, node: onnx.NodeProto) -> None:
    """Raise `Refused` for a constant of an element type that a network cannot have; `node` reads it."""
    if problem := _words(element_type):
        raise Refused(f"{name} is {problem}", nodes=[node])


def _is_empty(value: onnx.ValueInfoProto) -> bool:
    return any(dim.HasField("dim_value") and dim.dim_value == 0 for dim in value.type.tensor_type.shape.dim)


def _problem(value: onnx.ValueInfoProto) -> str:
    """Return what is wrong with an input or an output; an empty text if a network can have it."""
    kind = value.type.WhichOneof("value")
    if kind == "tensor_type":
        return _words(value.type.tensor_type.elem_type)
    return "" if kind is None else f"no tensor, but of {kind}"


def _words(element: int) -> str:
    """Return what is wrong with tensors of this element type; an empty text if a network can have them."""
    from onnx import TensorProto

    name = TensorProto.DataType.Name(element).lower()
    return (
        ""
        if {"float": "float32", "double": "float64"}.get(name, name) in (*ELEMENT_TYPES, "undefined")
        else f"of {name}"
    )


def refuse_unknown(nodes: Iterable[onnx.NodeProto], operators: Collection[str]) -> None:
    """Raise `Refused` for nodes of operators that cannot be imported."""
    if unknown := [node for node in nodes if not is_known(node, operators)]:
        raise Refused("Relax does not have it", nodes=unknown)


def node_text(node: onnx.NodeProto) -> str:
    """Return a node in words, as in "Split (node 'parts')"; one without a name has that of its first output."""
    return f"{node.op_type} (node {node.name or next(iter(node.output), '')!r})"


def unsupported_nodes(refusal: Refused, nodes: Mapping[str, onnx.NodeProto]) -> UnsupportedModelError:
    """Return the error for a refusal; `nodes` are the model's nodes by the tensors that they or their parts make.

    The error tells a node that was inlined with the node it is part of: "Elu in Celu (node 'celu0')".
    """
    found = []
    for node in refusal.nodes:
        whole = nodes.get(node.output[0], node) if node.output else node
        inner = "" if whole.op_type == node.op_type else f"{node.op_type} in "
        found.append(f"{inner}{node_text(whole)}")
    hints = dict.fromkeys(HINTS[node.op_type] for node in refusal.nodes if node.op_type in HINTS)
    hint = refusal.hint or "; ".join(hints) or (FAILED_HINT if refusal.__cause__ else UNKNOWN_HINT)
    return unsupported(found, refusal.problem, hint)
