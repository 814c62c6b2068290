"""Import of an ONNX model as a Relax module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax

from ..errors import InvalidArgumentError, MissingPackageError
from .faults import Refused, tvm_at_work
from .importer_errors import node_at_fault, quiet, summary
from .onnx_constants import fold_nodes
from .onnx_functions import inline_functions, nodes_by_output
from .onnx_qoperators import expand_qoperators
from .onnx_refusals import FAILED_HINT, refuse_types, refuse_unknown, unsupported_nodes
from .size_names import identifier
from .sizes import OpenSize, open_size

if TYPE_CHECKING:
    import onnx

    from .onnx_conversion import Importer


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


def import_onnx(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int | str]]
) -> tuple[tvm.IRModule, list[str], list[str], list[OpenSize]]:
    """Return the model as a Relax module, with ONNX's names of its inputs and outputs, and the sizes left open.

    `shapes` are the shapes of inputs that replace their own; the sizes are those of them that are open. Raises
    `UnsupportedModelError` for a model with an operator that Relax cannot import.
    """
    import onnx

    from .onnx_conversion import Importer

    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    inlined = inline_functions(expand_qoperators(model), Importer.operators)
    nodes = nodes_by_output(model, inlined)
    sizes = _checked(shapes, inputs)
    named = {
        name: [size.name if isinstance(size, OpenSize) else size for size in shape] for name, shape in sizes.items()
    }
    importer = Importer(nodes)
    try:
        if opset is None:
            refuse_unknown(model.graph, Importer.operators)
            domains = [each.domain for each in model.opset_import]
            raise InvalidArgumentError("opset_import", domains, "ONNX's own domain, ''")
        mod = _converted(inlined, opset, named, importer)
    except Refused as refusal:
        errors = [error for error in (refusal, refusal.__cause__) if error is not None]
        at_fault = [node for error in errors if (node := node_at_fault(error, onnx.NodeProto)) is not None]
        refusal.nodes = refusal.nodes or at_fault[:1]
        if shapes and refusal.hint is None:
            given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            refusal.hint = f"other shapes than those given, {given}, or {FAILED_HINT}"
        raise unsupported_nodes(refusal, nodes) from refusal.__cause__
    bounds = [size for shape in sizes.values() for size in shape if isinstance(size, OpenSize)]
    return mod, [value.name for value in inputs], [value.name for value in model.graph.output], bounds


def _converted(
    model: onnx.ModelProto, opset: int, shapes: Mapping[str, Sequence[int | str]], importer: Importer
) -> tvm.IRModule:
    """Return the model as a Relax module; raise `Refused` for a node that cannot be imported."""
    import onnx

    graph, constants = fold_nodes(model, opset, shapes)
    refuse_unknown(graph, importer.operators)
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in (*graph.input, *graph.output)}
    tensors = [tensor for tensor in model.graph.initializer if tensor.name in read]
    refuse_types(graph, tensors)
    with quiet(), tvm_at_work():
        importer._parse_graph_initializers(onnx.GraphProto(initializer=tensors))
        importer._nodes.update({name: relax.const(value, str(value.dtype)) for name, value in constants.items()})
        return importer.from_onnx(graph, opset)


def _checked(
    shapes: Mapping[str, Sequence[int | str]], inputs: list[onnx.ValueInfoProto]
) -> dict[str, list[int | OpenSize]]:
    """Return the shapes; raise `InvalidArgumentError` unless each is for an input with as many axes."""
    axes = {value.name: len(value.type.tensor_type.shape.dim) for value in inputs}
    checked: dict[str, list[int | OpenSize]] = {}
    for name, shape in shapes.items():
        if name not in axes:
            raise InvalidArgumentError("shapes", name, f"inputs of the model: {', '.join(axes)}")
        parsed = [_named(open_size(size)) if isinstance(size, str) else size for size in shape]
        sizes = [size for size in parsed if isinstance(size, OpenSize) or (isinstance(size, int) and 0 < size < 2**31)]
        if len(shape) != axes[name] or len(sizes) < len(shape):
            expected = f"{axes[name]} sizes for {name}, from 1 to {2**31 - 1} or open as in 'n' or 'n<=64'"
            raise InvalidArgumentError("shapes", shape, expected)
        checked[name] = sizes
    return checked


def _named(size: OpenSize | None) -> OpenSize | None:
    """Return an open size with an identifier as its name, as the sizes of a model have."""
    return None if size is None else replace(size, name=identifier(size.name))
