"""Import of ONNX's graph as a Relax module: TVM's importer, with converters of tvmconv where TVM's are wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np
import onnx
import tvm
import tvm_ffi
from onnx import numpy_helper
from tvm import relax, topi
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map, onnx_input

from ...graph.constants import constant_value, sizes_of
from ...graph.faults import Refused, summary, tvm_errors_as_refusals
from ...graph.graph import operator_name
from ...sizes.branch_conditions import numbered_test
from ...sizes.facts import SizeFacts
from ..agreement import broadcastable, joined, with_sizes
from ..builder import ImportBuilder, parameter_name
from .converters import CONVERTERS
from .converters.shapes import RANK_NEED
from .node import Node
from .refusals import node_text, refuse_constant, refuse_dtype, refuse_misread, refuse_unknown, refuse_values
from .sizes import Known, Sizes, evaluated, tensor_of

OF_SHAPES = ("relax.shape_to_tensor", "relax.tensor_to_shape")

DIRECT = ("Constant", "If")
"""Operators that the importer takes without a converter."""

BROADCASTING = frozenset(
    (
        "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual",
        "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "PRelu", "Pow", "Sub", "Sum", "Where", "Xor",
    )
)  # fmt: skip
"""Operators that repeat operands along axes where they have one element."""

PRODUCTS = ("MatMul", "MatMulInteger")
"""Operators that broadcast all axes in this way but the last two, which have matrices."""

OF_CHANNELS = ("BatchNormalization", "InstanceNormalization")
"""Operators whose second operand has a number for each channel of the first."""


class Importer(ONNXGraphImporter):  # type: ignore[misc]
    """An importer that tries the converters of tvmconv before those of TVM, and refuses nodes that TVM would misread.

    The value of a tensor by its name, in `_nodes`, is a constant of NumPy, sizes, or an expression of Relax.
    """

    operators = frozenset((*_get_convert_map(), *DIRECT, *CONVERTERS))
    """The names of the operators that can be imported."""

    def __init__(self, nodes: Mapping[str, onnx.NodeProto], facts: SizeFacts) -> None:
        """Start an import; `nodes` are the model's nodes by the tensors that they or their inlined parts make."""
        super().__init__(shape_dict={}, dtype_dict=None)
        self.bb = _Builder(facts)
        self._nodes_of_model = nodes
        self._nodes: dict[str, Any] = {}
        self._tensors: dict[str, onnx.TensorProto] = {}
        self._constants: dict[str, relax.Expr] = {}
        self._numbers = count()

    def imported(self, graph: onnx.GraphProto, inputs: Sequence[onnx.ValueInfoProto], opset: int) -> tvm.IRModule:
        """Return the graph as a module; raise `Refused` for a node that cannot be imported."""
        self._tensors = {tensor.name: tensor for tensor in graph.initializer}
        refuse_values(inputs, graph.output, graph.node)
        slim = onnx.GraphProto(name=graph.name, node=graph.node, input=inputs, output=graph.output)
        return self.from_onnx(slim, opset)

    def _sanitize_name(self, name: str) -> str:
        """Return the name of the parameter for an input; TVM has counted it already."""
        return parameter_name(self._num_input - 1, name)

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing: `_import` refuses an operator, unless it can compute the results at once."""

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        """Import the nodes in order, and make expressions of the graph's outputs."""
        self._import(graph)
        self.bb.enter("", "")
        for value in graph.output:
            self._nodes[value.name] = self._expression(value.name, self._value(value.name))

    def _import(self, graph: onnx.GraphProto) -> None:
        """Import the nodes in order; tensors that they compute from constants and sizes need no operators."""
        for index, node in enumerate(graph.node):
            of_model = self._nodes_of_model.get(next(iter(node.output), ""), node)
            self.bb.enter(variable_name(of_model), node_text(of_model))
            operands = self._operands(node)
            known = evaluated(self.bb, node, operands, self.opset)
            if node.op_type == "If" and (branch := self._chosen(node, operands[0])) is not None:
                known = self._of_branch(node, branch)
            if known is not None:
                self._nodes.update(known)
                continue
            refuse_unknown(graph.node[index:] if node.op_type not in self.operators else [node], self.operators)
            with tvm_errors_as_refusals():
                self._bind(node, self._if(node, operands) if node.op_type == "If" else self._converted(node, operands))

    # --- Values ---

    def _operands(self, node: onnx.NodeProto) -> list[Known | relax.Expr | None]:
        """Return the values that a node reads; raise `Refused`, with the node, for one that nothing makes."""
        return [self._value(name) if name else None for name in node.input]

    def _value(self, name: str) -> Known | relax.Expr:
        """Return the value of a tensor; raise `Refused` for one that nothing makes."""
        if name not in self._nodes:
            if name not in self._tensors:
                raise Refused(f"the model has no input, constant or node that makes its input {name!r}")
            try:
                self._nodes[name] = numpy_helper.to_array(self._tensors[name])
            except (ValueError, TypeError) as error:
                raise Refused(f"its constant {name!r} is damaged: {summary(error)}") from None
        return self._nodes[name]

    def _expression(self, name: str, value: Any) -> Any:
        """Return a value as an expression of Relax; None for an operand that is left out."""
        if isinstance(value, np.ndarray):
            if name not in self._constants:
                self._constants[name] = relax.const(value, str(value.dtype))
            return self._constants[name]
        return tensor_of(self.bb, value) if isinstance(value, Sizes) else value

    def _bind(self, node: onnx.NodeProto, result: relax.Expr) -> None:
        """Give the outputs of a node the values of its result, which is a tensor or a tuple of them."""
        outputs = list(node.output)
        for each in result.fields if isinstance(result, relax.Tuple) else [result]:
            if isinstance(each, relax.Var):  # TVM has not named it after the node
                self.bb.words.setdefault(each.name, self.bb.node)
        if isinstance(result.ty, relax.TupleType) and not node.op_type.startswith(("Optional", "Sequence", "SplitTo")):
            if not isinstance(result, relax.Tuple):
                fields = range(len(result.ty.fields))
                result = relax.Tuple([self.bb.emit(relax.TupleGetItem(result, index)) for index in fields])
            if len(outputs) > len(result):
                raise Refused(f"Relax has {len(result)} of its {len(outputs)} outputs")
            self._nodes.update((name, result[index]) for index, name in enumerate(outputs) if name)
        elif len(outputs) > 1 and any(outputs[1:]):
            raise Refused(f"Relax has 1 of its {len(outputs)} outputs")
        else:
            self._nodes[outputs[0]] = result

    # --- Operators ---

    def _converted(self, node: onnx.NodeProto, operands: Sequence[Any]) -> relax.Expr:
        """Return what a node computes, by a converter of tvmconv or of TVM."""
        attributes = self._parse_attr(node.attribute)
        attributes["tvm_custom"] = {"name": node.name, "num_outputs": len(node.output)}
        inputs = onnx_input()
        for name, operand in zip(node.input, operands, strict=True):
            if isinstance(operand, np.ndarray) and name in self._tensors:
                refuse_constant(name, self._tensors[name].data_type, node)
            keeps_sizes = isinstance(operand, Sizes) and len(inputs) >= TAKES_SIZES.get(node.op_type, len(operands))
            inputs.append(operand if keeps_sizes else self._expression(name, operand))
        return self._convert_operator(node.op_type, inputs, attributes, self.opset)

    def _convert_operator(self, name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> relax.Expr:
        if name == "Concat":
            inputs[:] = joined(self.bb, inputs, attrs.get("axis", 1))
        elif name in BROADCASTING:
            inputs[:] = broadcastable(self.bb, inputs)
        elif name in PRODUCTS and all(each.ty.ndim > 2 for each in inputs[:2]):
            inputs[:2] = broadcastable(self.bb, inputs[:2], kept=2)
        elif name in OF_CHANNELS and (channels := sizes_of(inputs[1].ty)):
            inputs[0] = with_sizes(self.bb, inputs[0], {1: channels[0]})
        node = Node(self.bb, name, inputs, attrs, opset, attrs["tvm_custom"]["num_outputs"])
        refuse_misread(node)
        if name == "NonMaxSuppression" and node.operand(3) is not None:
            # Relax drops boxes that reach the threshold, and ONNX those that exceed it.
            threshold = np.float32(node.constant(3, "iou_threshold"))
            inputs[3] = relax.const(np.nextafter(threshold, np.float32(np.inf)))
        converter = CONVERTERS.get(name)
        if converter is not None and not (name in BY_ELEMENTS and any(map(_is_computed, inputs[1:]))):
            result = self.bb.normalize(converter(node))
        else:
            inputs[:] = [self._expression("", each) for each in inputs]
            with tvm_errors_as_refusals():
                result = super()._convert_operator(name, inputs, attrs, opset)
        refuse_dtype(result)
        is_computed = isinstance(result, (relax.Call, relax.TupleGetItem)) and isinstance(result.ty, relax.TensorType)
        # The importer looks through calls that compute shapes: no variable may be in between.
        return self.bb.emit(result) if is_computed and operator_name(result) not in OF_SHAPES else result

    # --- If ---

    def _chosen(self, node: onnx.NodeProto, condition: Any) -> onnx.GraphProto | None:
        """Return the branch that a condition chooses if it is known now, None if it is known when the model runs.

        Where the branches have results of different ranks, and sizes decide, one is chosen for all calls.
        """
        branches = {attribute.name: attribute.g for attribute in node.attribute}
        if isinstance(condition, relax.Expr):
            condition = constant_value(condition)
        if isinstance(condition, np.ndarray):
            holds = bool(condition.reshape(-1)[0])
        elif isinstance(condition, Sizes) and not self._have_same_ranks(list(branches.values())):
            holds = self.bb.facts.choose(condition.listed()[0], True, self.bb.node, RANK_NEED)
        else:
            return None
        return branches["then_branch" if holds else "else_branch"]

    def _of_branch(self, node: onnx.NodeProto, branch: onnx.GraphProto) -> dict[str, Any]:
        """Return the results of a branch that is imported now, by the names of an If's outputs."""
        with self._scope(branch):
            self._import(branch)
            return {name: self._value(value.name) for name, value in zip(node.output, branch.output, strict=False)}

    def _if(self, node: onnx.NodeProto, operands: Sequence[Any]) -> relax.Expr:
        """Return the results of the branch that a condition chooses when the model runs."""
        branches, condition = {attribute.name: attribute.g for attribute in node.attribute}, operands[0]
        condition = self._expression(node.input[0], condition)
        if condition.ty.ndim:
            condition = self.bb.emit(relax.op.reshape(condition, ()))
        number = next(self._numbers)
        parts = []
        for name, holds in (("then_branch", True), ("else_branch", False)):
            with self.bb.facts.in_branch_of_test(number, holds):
                parts.append(self._sequence(branches[name]))
        ranks = [_ranks(part) for part in parts]
        if ranks[0] != ranks[1]:
            raise Refused("its branches have results of different ranks, and its condition is known only in a call")
        types = [part.body.ty for part in parts]
        choice = relax.If(self.bb.emit(numbered_test(condition, number)), *parts)
        if tvm_ffi.structural_equal(*types):  # TVM itself would forget the open sizes
            relax.expr._update_type(choice, types[0])
        return self.bb.emit(choice)

    def _have_same_ranks(self, branches: Sequence[onnx.GraphProto]) -> bool:
        with self.bb.facts.rolled_back():
            ranks = [_ranks(self._sequence(branch)) for branch in branches]
        return all(each == ranks[0] for each in ranks)

    def _sequence(self, branch: onnx.GraphProto) -> relax.SeqExpr:
        """Return the bindings of a branch, which are computed only if the condition chooses the branch."""
        with self._scope(branch):
            self.bb._begin_binding_block()
            self._construct_nodes(branch)
            values = [self._nodes[value.name] for value in branch.output]
            name = f"{values[0].name}_output" if isinstance(values[0], relax.Var) else ""
            result = self.bb.emit(values[0] if len(values) == 1 else relax.Tuple(values), name)
            return self.bb.normalize(relax.SeqExpr([self.bb._end_block()], result))

    @contextmanager
    def _scope(self, branch: onnx.GraphProto) -> Iterator[None]:
        """Import a branch, which sees the values outside of it, and whose values nothing outside sees."""
        before, node = (self._nodes, self._tensors, self._constants), self.bb.entered
        self._nodes, self._constants = dict(self._nodes), dict(self._constants)
        self._tensors = {**self._tensors, **{tensor.name: tensor for tensor in branch.initializer}}
        for tensor in branch.initializer:
            self._nodes.pop(tensor.name, None)
        try:
            yield
        finally:
            self._nodes, self._tensors, self._constants = before
        self.bb.enter(*node)


TAKES_SIZES = {
    "ConstantOfShape": 0, "Expand": 1, "OneHot": 1, "Pad": 1, "Range": 0, "Reshape": 1, "Resize": 1, "Slice": 1,
    "Split": 1, "Tile": 1, "TopK": 1, "Upsample": 1,
}  # fmt: skip
"""Operators whose converters take `Sizes` as they are, each with the index of the first operand that may be some.

For other operators a function writes the sizes to a tensor.
"""

BY_ELEMENTS = ("Reshape", "Slice", "Split", "Tile")
"""Operators that TVM's importer converts where elements of computed tensors decide on sizes."""


def _is_computed(operand: Any) -> bool:
    return isinstance(operand, relax.Expr) and constant_value(operand) is None


def _fields(ty: tvm.ir.Type) -> Sequence[relax.TensorType]:
    return ty.fields if isinstance(ty, relax.TupleType) else [ty]


def _ranks(branch: relax.SeqExpr) -> list[int]:
    return [int(field.ndim) for field in _fields(branch.body.ty)]


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
