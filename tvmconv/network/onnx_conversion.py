"""Import of ONNX's graph as a Relax module: TVM's importer, with converters of tvmconv where its own do not do."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from tvm import relax, topi
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map

from .agreement import joined
from .faults import tvm_at_work
from .graph import operator_name
from .import_builder import ImportBuilder
from .onnx_converters import CONVERTERS
from .onnx_node import Node
from .onnx_refusals import node_text, refuse_dtype, refuse_misread
from .size_facts import SizeFacts

OF_SHAPES = ("relax.shape_to_tensor", "relax.tensor_to_shape")

DIRECT = ("Constant", "If")
"""Operators that the importer takes without a converter."""


class Importer(ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, with the converters of tvmconv before its own; it refuses nodes that TVM would misread."""

    operators = frozenset((*_get_convert_map(), *DIRECT, *CONVERTERS))
    """The names of the operators that can be imported."""

    def __init__(self, nodes: Mapping[str, onnx.NodeProto], facts: SizeFacts) -> None:
        """Start an import; `nodes` are the model's nodes by the tensors that they or their inlined parts make."""
        super().__init__(shape_dict={}, dtype_dict=None)
        self.bb = _Builder(facts)
        self._nodes_of_model = nodes

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing: unsupported operators are refused before the import."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        for node in graph.node:
            of_model = self._nodes_of_model.get(next(iter(node.output), ""), node)
            self.bb.enter(variable_name(of_model), node_text(of_model))
            with tvm_at_work():
                super()._construct_nodes(onnx.GraphProto(node=[node]))

    def _convert_operator(self, name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        node = Node(self.bb, name, inputs, attrs, opset, attrs["tvm_custom"]["num_outputs"])
        refuse_misread(node)
        if name == "NonMaxSuppression" and node.operand(3) is not None:
            # Relax drops boxes that reach the threshold, and ONNX those that exceed it.
            threshold = np.float32(node.constant(3, "iou_threshold"))
            inputs[3] = relax.const(np.nextafter(threshold, np.float32(np.inf)))
        if name == "Concat" and not any(isinstance(each, relax.ShapeExpr) for each in inputs):
            inputs = joined(self.bb, inputs, attrs.get("axis", 1))
        if (converter := CONVERTERS.get(name)) is not None:
            result = self.bb.normalize(converter(node))
        else:
            with tvm_at_work():
                result = super()._convert_operator(name, inputs, attrs, opset)
        refuse_dtype(result)
        is_computed = isinstance(result, relax.Call) and isinstance(result.ty, relax.TensorType)
        # What computes shapes the importer looks through.
        return self.bb.emit(result) if is_computed and operator_name(result) not in OF_SHAPES else result


def variable_name(node: onnx.NodeProto) -> str:
    """Return the name for the variables of a node: its operator and its name or first output, as a C identifier."""
    return re.sub(r"\W", "_", f"{node.op_type}_{node.name or next(iter(node.output), '')}")


class _Builder(ImportBuilder):
    """A builder that keeps clips and padding as operators that passes can read; TVM's importer would lower them."""

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
