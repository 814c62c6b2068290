"""Import of an ONNX model as a Relax module."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tvm import relax

from tvmconv.problem.errors import InvalidArgumentError, MissingPackageError

from ...graph.faults import Refused, node_at_fault, quiet, summary, tvm_errors_as_refusals
from ...graph.sizes import OpenSize
from ...sizes.facts import SizeFacts
from ..builder import Imported
from .node import OPEN_HINT
from .qoperators import expand_qoperators
from .refusals import FAILED_HINT, is_known, refuse_unknown, unsupported_nodes

if TYPE_CHECKING:
    import onnx
    import tvm


def read_onnx(path: Path) -> onnx.ModelProto:
    """Read the model in an ONNX file; raise `InvalidArgumentError` for a file that is missing or damaged."""
    onnx = require_onnx()
    if not path.is_file():
        raise InvalidArgumentError("source", str(path), "an ONNX file that exists")
    model = _parsed(path.read_bytes(), str(path))
    try:
        onnx.external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (onnx.checker.ValidationError, OSError) as error:
        raise InvalidArgumentError("source", str(path), f"an ONNX file with its data ({summary(error)})") from None
    return model


def parse_onnx(data: bytes) -> onnx.ModelProto:
    """Parse the bytes of an ONNX file; raise `InvalidArgumentError` for anything else."""
    return _parsed(data, f"{len(data)} bytes")


def require_onnx() -> ModuleType:
    """Return the package onnx; raise `MissingPackageError` where it is not installed."""
    try:
        return import_module("onnx")
    except ImportError:
        raise MissingPackageError("onnx", "onnx", "importing an ONNX file") from None


def _parsed(data: bytes, source: str) -> onnx.ModelProto:
    onnx = require_onnx()
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        raise InvalidArgumentError("source", source, "an ONNX file; this is another format, or damaged") from None
    # Bytes that end between two fields still parse; no bytes at all do too.
    if not (model.ir_version and model.opset_import and model.graph.output):
        raise InvalidArgumentError("source", source, "a whole ONNX file; this one is empty or cut off")
    if not _has_text(model):
        raise InvalidArgumentError("source", source, "an ONNX file with its texts in UTF-8; this one is damaged")
    return model


def _has_text(message: Any) -> bool:
    """Return whether every text in a message is valid UTF-8; protobuf reads others as bytes, which no code expects."""
    for field, value in message.ListFields():
        parts = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        if field.type == field.TYPE_STRING and not all(isinstance(part, str) for part in parts):
            return False
        if field.type == field.TYPE_MESSAGE and not all(map(_has_text, parts)):
            return False
    return True


def import_onnx(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str]]) -> Imported:
    """Return the model as a Relax module, with ONNX's names of its inputs and outputs.

    `shapes` replace the shapes of inputs, by name. Raises `UnsupportedModelError` for a model with an operator that
    Relax cannot import.
    """
    import onnx

    from .conversion import Importer
    from .inputs import inputs_with_shapes

    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs, sizes = inputs_with_shapes([each for each in model.graph.input if each.name not in weights], shapes)
    inlined = inline_functions(expand_qoperators(model), Importer.operators)
    nodes = _nodes_by_output(model, inlined)
    try:
        if opset is None:
            refuse_unknown(model.graph.node, Importer.operators)
            domains = [each.domain for each in model.opset_import]
            raise InvalidArgumentError("opset_import", domains, "ONNX's own domain, ''")
        with quiet(), tvm_errors_as_refusals():
            mod, facts, words = _imported(inlined.graph, inputs, opset, nodes, sizes)
    except Refused as refusal:
        errors = [error for error in (refusal, refusal.__cause__) if error is not None]
        at_fault = [node for error in errors if (node := node_at_fault(error, onnx.NodeProto)) is not None]
        refusal.nodes = refusal.nodes or at_fault[:1]
        if shapes and refusal.hint is None:
            given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            refusal.hint = f"other shapes than those given, {given}, or {FAILED_HINT}"
        raise unsupported_nodes(refusal, nodes) from refusal.__cause__
    outputs = [value.name for value in model.graph.output]
    return Imported(mod, [value.name for value in inputs], outputs, facts, words)


MAX_TRIES = 16
"""The largest number of imports of a model that leaves ranks to open sizes: of each such rank, two are tried."""


def _imported(
    graph: onnx.GraphProto,
    inputs: Sequence[onnx.ValueInfoProto],
    opset: int,
    nodes: Mapping[str, onnx.NodeProto],
    sizes: Sequence[OpenSize],
) -> tuple[tvm.IRModule, SizeFacts, Mapping[str, str]]:
    """Return the graph as a module, the facts about its sizes, and its nodes in words.

    Where open sizes decide on ranks, these are chosen such that the graph can be imported and, if possible, that its
    outputs have the ranks that it declares. Raises the first `Refused` of a graph that takes no choice.
    """
    from .conversion import Importer

    path: list[tuple[bool, bool]] = []  # the choices, and for each whether it is the second one
    first: tuple[tvm.IRModule, SizeFacts, Mapping[str, str]] | None = None
    refusal: Refused | None = None
    for _ in range(MAX_TRIES):
        facts = SizeFacts(sizes, choices=[holds for holds, _ in path])
        importer = Importer(nodes, facts)
        try:
            with tvm_errors_as_refusals():
                result = importer.imported(graph, inputs, opset), facts, importer.bb.words
            if not facts.choices or _has_given_ranks(result[0], graph.output):
                return result
            first = first or result
        except Refused as error:
            refusal = refusal or error
        path = [(holds, index < len(path) and path[index][1]) for index, holds in enumerate(facts.choices)]
        while path and path[-1][1]:
            path.pop()
        if not path:
            break
        path[-1] = (not path[-1][0], True)
    if first is not None:
        return first
    raise refusal or Refused(f"its ranks follow from open sizes in over {MAX_TRIES} ways", OPEN_HINT)


def _has_given_ranks(mod: tvm.IRModule, outputs: Sequence[onnx.ValueInfoProto]) -> bool:
    """Return whether the results of "main" have the ranks that the model declares for its outputs, where it does."""
    result = mod["main"].ret_ty
    fields = result.fields if isinstance(result, relax.TupleType) else [result]
    types = [value.type.tensor_type for value in outputs]
    return all(
        not ty.HasField("shape") or len(ty.shape.dim) == field.ndim for ty, field in zip(types, fields, strict=True)
    )


def inline_functions(model: onnx.ModelProto, operators: Collection[str]) -> onnx.ModelProto:
    """Return the model with nodes of other operators than these replaced by definitions, of the model or of ONNX.

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
    typed.CopyFrom(model)  # a definition that depends on types looks up those of constants here alone
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


def _nodes_by_output(model: onnx.ModelProto, inlined: onnx.ModelProto) -> dict[str, onnx.NodeProto]:
    """Return the model's nodes by the tensors that they make, including tensors made inside inlined definitions."""
    nodes = {name: node for node in model.graph.node for name in node.output}
    for node in reversed(inlined.graph.node):
        whole = next((nodes[name] for name in node.output if name in nodes), None)
        if whole is not None:  # inputs that no node of the model makes belong to its definition
            nodes.update({name: whole for name in node.input if name not in nodes})
    return nodes
