"""From ONNX to Relax."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, topi

from ..errors import InvalidArgumentError, MissingPackageError
from .constants import static_shape
from .importer_errors import IMPORT_ERRORS, node_at_fault, quiet, summary
from .onnx_constants import fold_nodes
from .onnx_functions import inline_functions
from .onnx_refusals import FAILED_HINT, HINTS, refuse_misread, unsupported_nodes

if TYPE_CHECKING:
    import onnx


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file; `InvalidArgumentError` for one that is missing or damaged."""
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
    """The model in what an ONNX file holds; `InvalidArgumentError` for anything else."""
    return _parsed(data, f"{len(data)} bytes")


def require_onnx() -> ModuleType:
    """The package onnx; `MissingPackageError` where it is not installed."""
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
    """Whether every text in a message is one: what is no UTF-8 protobuf reads as bytes, which nothing expects."""
    for field, value in message.ListFields():
        parts = [value] if isinstance(value, str | bytes) or hasattr(value, "ListFields") else value
        if field.type == field.TYPE_STRING and not all(isinstance(part, str) for part in parts):
            return False
        if field.type == field.TYPE_MESSAGE and not all(map(_has_text, parts)):
            return False
    return True


def import_onnx(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]
) -> tuple[tvm.IRModule, list[str], list[str]]:
    """The model as a Relax module, with ONNX's names of its inputs and outputs.

    `shapes` is what inputs have in place of their own shapes. Raises `UnsupportedModelError` for a model with an
    operator that Relax cannot import.
    """
    import onnx
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    model = inline_functions(model)
    refuse_misread(model.graph)

    class Importer(ONNXGraphImporter):  # type: ignore[misc]
        """TVM's importer, but for two operators.

        It adds up pair by pair, which kernels can take in, where TVM's would stack all that is to be added. It gives
        transposed convolutions the padding that makes their output_shape, which TVM's ignores.
        """

        def _convert_operator(self, name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
            if name == "Sum":
                return reduce(lambda x, y: self.bb.normalize(relax.op.add(x, y)), inputs)
            if name == "ConvTranspose" and "output_shape" in attrs:
                attrs = _with_pads(attrs, static_shape(inputs[0].ty), static_shape(inputs[1].ty))
            return super()._convert_operator(name, inputs, attrs, opset)

    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    importer = Importer(shape_dict=_checked(shapes, inputs), dtype_dict=None)
    importer.bb = _RelaxBuilder()
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset is None:  # Relax would take its operators for those of the first
        raise InvalidArgumentError(
            "opset_import", [entry.domain for entry in model.opset_import], "ONNX's own domain, ''"
        )
    try:
        with quiet():
            graph, constants = fold_nodes(model, opset, shapes)
            importer._parse_graph_initializers(model.graph)
            importer._nodes.update({name: relax.const(value, str(value.dtype)) for name, value in constants.items()})
            mod = importer.from_onnx(graph, opset)
    except tvm.error.OpNotImplemented as error:
        unknown = summary(error).rpartition(": ")[2].split(", ")
        nodes = [node for node in model.graph.node if node.op_type in unknown]
        raise unsupported_nodes(nodes, "Relax does not have it") from error
    except IMPORT_ERRORS as error:
        node = node_at_fault(error, onnx.NodeProto)
        hint = HINTS.get(node.op_type, FAILED_HINT) if node else FAILED_HINT
        if shapes:
            given = ", ".join(f"{name} {tuple(shape)}" for name, shape in shapes.items())
            hint = f"other shapes than those given, {given}, or {hint}"
        raise unsupported_nodes([node] if node else [], summary(error), hint) from error
    return mod, [value.name for value in inputs], [value.name for value in model.graph.output]


def _checked(shapes: Mapping[str, Sequence[int]], inputs: list[onnx.ValueInfoProto]) -> dict[str, list[int]]:
    """The shapes, each for an input of as many axes; `InvalidArgumentError` for others."""
    axes = {value.name: len(value.type.tensor_type.shape.dim) for value in inputs}
    for name, shape in shapes.items():
        if name not in axes:
            raise InvalidArgumentError("shapes", name, f"inputs of the model: {', '.join(axes)}")
        if len(shape) != axes[name] or not all(isinstance(size, int) and 0 < size < 2**31 for size in shape):
            raise InvalidArgumentError("shapes", shape, f"{axes[name]} sizes for {name}, from 1 to {2**31 - 1}")
    return {name: list(shape) for name, shape in shapes.items()}


class _RelaxBuilder(relax.BlockBuilder):  # type: ignore[misc]
    """Keeps clips and padding as operators of Relax, which passes can read; the importer would lower them at once."""

    def emit_te(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> relax.Var:
        x = args[0]
        if func not in (topi.maximum, topi.minimum, topi.nn.pad) or "float" not in str(x.ty.dtype):
            return super().emit_te(func, *args, **kwargs)
        if func is topi.nn.pad:
            _, before, after, value = args
            widths = [int(size) for pair in zip(before, after, strict=True) for size in pair]
            return self.emit(relax.op.nn.pad(x, widths, "constant", float(value)))
        bound = relax.const(args[1], x.ty.dtype) if isinstance(args[1], float) else args[1]
        return self.emit(relax.op.maximum(x, bound) if func is topi.maximum else relax.op.minimum(x, bound))


def _with_pads(
    attrs: dict[str, Any], x_shape: tuple[int, ...] | None, w_shape: tuple[int, ...] | None
) -> dict[str, Any]:
    """The attributes of a ConvTranspose with the padding that makes its output_shape, as ONNX's specification has it.

    Before: `{"output_shape": (10, 8), "strides": (3, 2)}` for x (1, 1, 3, 3) and 3x3 kernels.
    After: `{"strides": (3, 2), "pads": [0, 0, 0, 0], "output_padding": [1, 1]}`.
    """
    if x_shape is None or w_shape is None:
        raise ValueError("its output_shape is for an input of known size")
    rest = {key: value for key, value in attrs.items() if key not in ("output_shape", "auto_pad")}
    axes = range(len(x_shape) - 2)
    strides, dilations = (attrs.get(key, [1 for _ in axes]) for key in ("strides", "dilations"))
    more = list(attrs.get("output_padding", [0 for _ in axes]))
    before, after = [], []
    for i, target in enumerate(attrs["output_shape"][-len(axes) :]):
        size = strides[i] * (x_shape[i + 2] - 1) + (w_shape[i + 2] - 1) * dilations[i] + 1 + more[i]
        more[i] += max(target - size, 0)
        less = max(size - target, 0)
        first = less // 2 if attrs.get("auto_pad") == b"SAME_UPPER" else less - less // 2
        before.append(first)
        after.append(less - first)
    return {**rest, "pads": before + after, "output_padding": more}
