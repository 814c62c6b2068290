"""From ONNX to Relax."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm
from tvm import relax, topi

from ..errors import InvalidArgumentError, MissingPackageError, UnsupportedModelError
from .importer_errors import IMPORT_ERRORS, node_at_fault, quiet, summary, unsupported

if TYPE_CHECKING:
    import onnx

HINTS = {
    "ConvInteger": "export the model in Q/DQ form (QuantizeLinear and DequantizeLinear around Conv)",
    "QLinearConv": "export the model in Q/DQ form (QuantizeLinear and DequantizeLinear around Conv)",
    "QLinearMatMul": "export the model in Q/DQ form (QuantizeLinear and DequantizeLinear around MatMul)",
    "ConvTranspose": "give its padding as `pads` and `output_padding`",
    "MaxPool": "give its padding as `pads`",
    "Upsample": "export the model with opset 11 or later, which has Resize",
}
"""What helps with an operator that Relax does not have or gets wrong."""

PADS_LOW = "Relax gets the shape of auto_pad SAME_LOWER wrong"
UNKNOWN_HINT = "export the model without it, or replace it by operators that Relax has"
FAILED_HINT = "export the model with static shapes, with another opset, or without this operator"


def read_onnx(path: Path) -> onnx.ModelProto:
    """The model in an ONNX file; `InvalidArgumentError` for one that is missing or damaged."""
    try:
        import onnx
    except ImportError:
        raise MissingPackageError("onnx", "onnx", "importing an ONNX file") from None
    from google.protobuf.message import DecodeError

    if not path.is_file():
        raise InvalidArgumentError("source", str(path), "an ONNX file that exists")
    try:
        model = onnx.load(path, format="protobuf")
    except DecodeError:
        raise InvalidArgumentError("source", str(path), "an ONNX file; this is another format, or damaged") from None
    except (onnx.checker.ValidationError, OSError) as error:
        raise InvalidArgumentError("source", str(path), f"an ONNX file with its data ({summary(error)})") from None
    # Bytes that end between two fields still parse; no bytes at all do too.
    if not (model.ir_version and model.opset_import and model.graph.output):
        raise InvalidArgumentError("source", str(path), "a whole ONNX file; this one is empty or cut off")
    return model


def import_onnx(model: onnx.ModelProto) -> tuple[tvm.IRModule, list[str], list[str]]:
    """The model as a Relax module, with ONNX's names of its inputs and outputs.

    Raises `UnsupportedModelError` for a model with an operator that Relax cannot import.
    """
    import onnx
    from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter

    for has_problem, problem in ((_has_output_shape, "Relax ignores its output_shape"), (_pads_low, PADS_LOW)):
        if nodes := [node for node in model.graph.node if has_problem(node)]:
            raise _unsupported(nodes, problem)

    class Importer(ONNXGraphImporter):  # type: ignore[misc]
        """Adds up pair by pair, which kernels can take in, where TVM's would stack all that is to be added."""

        def _convert_operator(self, name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
            if name == "Sum":
                return reduce(lambda x, y: self.bb.normalize(relax.op.add(x, y)), inputs)
            return super()._convert_operator(name, inputs, attrs, opset)

    importer = Importer(shape_dict=None, dtype_dict=None)
    importer.bb = _RelaxBuilder()
    opset = next((entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")), None)
    if opset is None:  # Relax would take its operators for those of the first
        raise InvalidArgumentError(
            "opset_import", [entry.domain for entry in model.opset_import], "ONNX's own domain, ''"
        )
    try:
        with quiet():
            mod = importer.from_onnx(model.graph, opset)
    except tvm.error.OpNotImplemented as error:
        unknown = summary(error).rpartition(": ")[2].split(", ")
        nodes = [node for node in model.graph.node if node.op_type in unknown]
        raise _unsupported(nodes, "Relax does not have it") from error
    except IMPORT_ERRORS as error:
        node = node_at_fault(error, onnx.NodeProto)
        hint = HINTS.get(node.op_type, FAILED_HINT) if node else FAILED_HINT
        raise _unsupported([node] if node else [], summary(error), hint) from error
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value.name for value in model.graph.input if value.name not in weights]
    return mod, inputs, [value.name for value in model.graph.output]


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


def _has_output_shape(node: onnx.NodeProto) -> bool:
    return node.op_type == "ConvTranspose" and any(attribute.name == "output_shape" for attribute in node.attribute)


def _pads_low(node: onnx.NodeProto) -> bool:
    return node.op_type == "MaxPool" and any(attribute.s == b"SAME_LOWER" for attribute in node.attribute)


def _unsupported(nodes: list[onnx.NodeProto], problem: str, hint: str | None = None) -> UnsupportedModelError:
    found = [f"{node.op_type} (node {node.name or node.output[0]!r})" for node in nodes]
    hints = dict.fromkeys(HINTS.get(node.op_type, UNKNOWN_HINT) for node in nodes)
    return unsupported(found, problem, hint or "; ".join(hints) or UNKNOWN_HINT)
