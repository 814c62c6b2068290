"""Evaluation of ONNX nodes whose operands are known when a model is imported: constants, and sizes of tensors.

Exporters write shapes as graphs: Shape, Gather, Cast, arithmetic, Concat, Reshape. A size that is open is an expression
here, and so is what is computed from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from tvm import relax, te, tirx, topi

from ...graph.constants import Array, sizes_of
from ...sizes.elements import (
    COMPARING,
    FUNCTIONS,
    REDUCING,
    Element,
    Ratio,
    UnknownElementError,
    is_expression,
    simplest,
    truncated,
)
from ...sizes.facts import Size, SizeFacts, as_expr, product, python_text
from ..builder import ImportBuilder

if TYPE_CHECKING:
    import onnx

MAX_ELEMENTS = 1024
"""The largest number of elements of an array with expressions; arrays of sizes have a few."""

RANDOM = ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
"""Operators whose results differ from run to run."""

QUANTIZED = ("DequantizeLinear", "QuantizeLinear")
"""Operators whose integers, scales and zero points are read later."""

UNKNOWN = (NotImplementedError, RuntimeError, TypeError, ValueError, LookupError, AttributeError, MemoryError)
"""The errors that the reference evaluator has been seen to raise for nodes that it cannot compute."""


@dataclass(frozen=True)
class Sizes:
    """An array some of whose elements are expressions of open sizes."""

    elements: np.ndarray[Any, np.dtype[np.object_]]
    dtype: np.dtype[Any]

    def listed(self) -> list[Element]:
        """Return the elements of an array with one axis, or the only one of an array without axes."""
        return list(self.elements.reshape(-1))


Known: TypeAlias = Array | Sizes
"""A value that is known when a model is imported: a constant, or an array with expressions of open sizes."""


def evaluated(
    builder: ImportBuilder, node: onnx.NodeProto, operands: Sequence[Known | relax.Expr | None], opset: int
) -> dict[str, Known] | None:
    """Return the outputs of a node, by their names, where they follow from constants and sizes; None elsewhere.

    Operands are None where they are left out.
    """
    if node.domain not in ("", "ai.onnx") or node.op_type in (*RANDOM, *QUANTIZED):
        return None
    if any(attribute.HasField("g") for attribute in node.attribute):
        return None
    names = [name for name in node.output if name]
    if node.op_type in ("Shape", "Size") and isinstance(operands[0], (relax.Expr, Sizes)):
        shape = _shape(operands[0])
        return None if shape is None else {names[0]: _of_shape(node, shape, builder.facts)}
    present = [each for each in operands if each is not None]
    if not all(isinstance(each, (np.ndarray, Sizes)) for each in present):
        return None
    if not any(isinstance(each, Sizes) for each in present):
        inputs = {name: each for name, each in zip(node.input, operands, strict=True) if isinstance(each, np.ndarray)}
        return {**results} if (results := computed(node, inputs, opset)) is not None else None
    try:
        return dict(zip(names, _symbolic(builder, node, operands, opset), strict=True))
    except UnknownElementError:
        return None


def computed(node: onnx.NodeProto, inputs: dict[str, Array], opset: int) -> dict[str, Array] | None:
    """Return the node's outputs by name; None if the reference evaluator cannot compute them or they are no tensors."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    names = [name for name in node.output if name]
    # A node alone is read as one of the newest opset, whatever it is told.
    function = helper.make_function("", node.op_type, list(inputs), names, [node], [helper.make_opsetid("", opset)])
    try:
        results = ReferenceEvaluator(function).run(names, inputs, {})
    except UNKNOWN:
        return None
    if not all(isinstance(result, (np.ndarray, np.generic)) for result in results):
        return None
    return {name: np.asarray(result) for name, result in zip(names, results, strict=True)}


def tensor_of(builder: ImportBuilder, sizes: Sizes) -> relax.Expr:
    """Return a tensor with the elements of an array, which a function of the module writes."""
    shape = sizes.elements.shape
    values = [_stored(each, sizes.dtype) for each in sizes.listed()]

    def compute(values: Sequence[tirx.Expr]) -> te.Tensor:
        def element(*at: tirx.Expr) -> tirx.Expr:
            index = reduce(lambda index, each: index * each[1] + each[0], zip(at, shape, strict=True), as_expr(0))
            value = values[-1]
            for i in reversed(range(len(values) - 1)):
                value = tirx.if_then_else(tirx.EQ(index, as_expr(i)), values[i], value)
            return value

        return te.compute(shape, element, name="sizes", tag=topi.tag.INJECTIVE)

    return builder.emit_te(compute, values, primfunc_name_hint="sizes")


def _stored(element: Element, dtype: np.dtype[Any]) -> tirx.Expr:
    """Return an element as an expression of a dtype."""
    if isinstance(element, Ratio):
        return tirx.Cast(str(dtype), element.above) / tirx.const(element.below, str(dtype))
    if isinstance(element, tirx.Expr):
        return element if str(element.ty.dtype) == str(dtype) else tirx.Cast(str(dtype), element)
    return tirx.const(float(element) if dtype.kind == "f" else int(element), str(dtype))


# --- Shapes ---


def _shape(operand: relax.Expr | Sizes) -> tuple[Size, ...] | None:
    if isinstance(operand, Sizes):
        return tuple(operand.elements.shape)
    return sizes_of(operand.ty) if isinstance(operand.ty, relax.TensorType) else None


def _of_shape(node: onnx.NodeProto, shape: Sequence[Size], facts: SizeFacts) -> Known:
    sizes = [facts.simplified(size) for size in shape]
    if node.op_type == "Size":
        return _settled(np.array(facts.simplified(product(sizes)), object), np.dtype("int64"))
    ends = {attribute.name: attribute.i for attribute in node.attribute}
    chosen = sizes[slice(ends.get("start", 0), ends.get("end", len(sizes)))]
    return _settled(_array(chosen, (len(chosen),)), np.dtype("int64"))


# --- Operators ---


def _symbolic(builder: ImportBuilder, node: onnx.NodeProto, operands: Sequence[Any], opset: int) -> list[Known]:
    """Return the outputs of a node with expressions among its operands; raise `UnknownElementError` for others."""
    name, facts = node.op_type, builder.facts
    if any(isinstance(each, Sizes) and each.elements.size > MAX_ELEMENTS for each in operands):
        raise UnknownElementError
    if name in MOVING:
        return _rearranged(node, operands, opset)
    attributes = {each.name: each for each in node.attribute}
    if name in ("Cast", "CastLike"):
        return [_cast(operands[0], _dtype(attributes["to"].i) if name == "Cast" else operands[1].dtype, facts)]
    if name in REDUCING:
        return [_reduced(name, operands, attributes, facts)]
    function = FUNCTIONS.get(name)
    if function is None or (name == "Mod" and "fmod" in attributes and attributes["fmod"].i):
        raise UnknownElementError
    if name == "Where":
        dtype, arrays = operands[1].dtype, [_elements(each) for each in operands]
    else:
        dtype, arrays = operands[0].dtype, [_elements(each) for each in operands if each is not None]
    is_float = dtype.kind == "f"

    def combined(*values: Element) -> Element:
        if name in ("Div", "Mod") and not is_float and any(map(is_expression, values)):
            _require_divisor(builder, values[1])
        return simplest(function(facts, is_float, *values), facts)

    if name in ("Max", "Min", "Sum"):
        result = reduce(lambda left, right: np.frompyfunc(combined, 2, 1)(left, right), arrays)
    else:
        result = np.frompyfunc(combined, len(arrays), 1)(*arrays)
    return [_settled(np.asarray(result, object), np.dtype(bool) if name in COMPARING else dtype)]


def _require_divisor(builder: ImportBuilder, divisor: Element) -> None:
    """Require that a node divides by a positive integer; raise `UnknownElementError` for one that cannot be."""
    is_positive = builder.facts.proves(divisor > 0)
    if is_positive is False or not (is_positive or builder.facts.are_of_inputs(divisor)):
        raise UnknownElementError
    if not is_positive:
        # TVM computes sizes when a call begins, those in branches that do not run as well.
        with builder.facts.in_branch(()):
            builder.require(divisor > 0, f"divides by {python_text(divisor)}, which has to be positive")


MOVING = {
    "Concat": None, "Expand": (0,), "Flatten": (0,), "Gather": (0,), "GatherElements": (0,), "GatherND": (0,),
    "Identity": (0,), "Reshape": (0,), "ScatterElements": (0, 2), "ScatterND": (0, 2), "Slice": (0,), "Split": (0,),
    "Squeeze": (0,), "Tile": (0,), "Transpose": (0,), "Unsqueeze": (0,),
}  # fmt: skip
"""Operators that move elements, and the indices of the operands that have them; None for all."""


def _rearranged(node: onnx.NodeProto, operands: Sequence[Any], opset: int) -> list[Known]:
    """Return the outputs of an operator that moves elements: it is run on numbers that stand for them."""
    moving = MOVING[node.op_type]
    table: list[Element] = []
    inputs: dict[str, Array] = {}
    renamed = type(node)()
    renamed.CopyFrom(node)  # a tensor may be read twice, once for its elements and once as indices
    for index, operand in enumerate(operands):
        if operand is None:
            continue
        renamed.input[index] = name = f"operand_{index}"
        if moving is None or index in moving:
            elements = _elements(operand)
            inputs[name] = np.arange(len(table), len(table) + elements.size).reshape(elements.shape)
            table += list(elements.reshape(-1))
        elif isinstance(operand, Sizes):
            raise UnknownElementError
        else:
            inputs[name] = operand
    results = computed(renamed, inputs, opset)
    if results is None:
        raise UnknownElementError
    dtype = operands[0].dtype
    return [_settled(_array([table[i] for i in each.reshape(-1)], each.shape), dtype) for each in results.values()]


def _reduced(name: str, operands: Sequence[Any], attributes: dict[str, Any], facts: SizeFacts) -> Known:
    elements, dtype = _elements(operands[0]), operands[0].dtype
    axes = operands[1] if len(operands) > 1 else None
    if isinstance(axes, Sizes):
        raise UnknownElementError
    if axes is None and "axes" in attributes:
        axes = np.array(attributes["axes"].ints)
    if (
        (axes is None or not axes.size)
        and "noop_with_empty_axes" in attributes
        and attributes["noop_with_empty_axes"].i
    ):
        return _settled(elements, dtype)
    keep = not ("keepdims" in attributes and attributes["keepdims"].i == 0)
    wanted = range(elements.ndim) if axes is None or not axes.size else [int(axis) % elements.ndim for axis in axes]
    function = np.frompyfunc(lambda a, b: simplest(REDUCING[name](facts, dtype.kind == "f", a, b), facts), 2, 1)
    for axis in sorted(wanted, reverse=True):
        elements = np.asarray(function.reduce(elements, axis=axis, keepdims=keep), object)
    return _settled(elements, dtype)


def _cast(operand: Known, dtype: np.dtype[Any], facts: SizeFacts) -> Known:
    """Return an array in another dtype; sizes themselves fit into any but the narrowest ones."""
    if dtype.name not in ("bool", "int32", "int64", "uint32", "uint64", "float32", "float64"):
        raise UnknownElementError

    def cast(element: Element) -> Element:
        if not is_expression(element):
            value = np.asarray(element if not isinstance(element, Fraction) else float(element)).astype(dtype).item()
            return Fraction(value) if dtype.kind == "f" else value
        if dtype.kind == "f":
            if operand.dtype.kind == "b":
                raise UnknownElementError
            return element if isinstance(element, Ratio) else Ratio(element)
        if operand.dtype.kind == "b" or (dtype.kind == "b" and isinstance(element, Ratio)):
            raise UnknownElementError
        if dtype.kind == "b":
            return simplest(tirx.NE(element, as_expr(0)), facts)
        return truncated(facts, element) if isinstance(element, Ratio) else element

    elements: Any = np.frompyfunc(cast, 1, 1)(_elements(operand))
    return _settled(np.asarray(elements, object), dtype)


def _elements(operand: Known) -> np.ndarray[Any, np.dtype[np.object_]]:
    """Return the elements of an array as objects of Python, those of floats as fractions."""
    if isinstance(operand, Sizes):
        return operand.elements
    if operand.dtype.kind not in "biuf" or operand.size > MAX_ELEMENTS or not np.isfinite(operand).all():
        raise UnknownElementError
    values = [Fraction(each) if operand.dtype.kind == "f" else each for each in operand.reshape(-1).tolist()]
    return _array(values, operand.shape)


def _array(values: Sequence[Element], shape: tuple[int, ...]) -> np.ndarray[Any, np.dtype[np.object_]]:
    array = np.empty(len(values), object)
    for index, value in enumerate(values):
        array[index] = value
    return array.reshape(shape)


def _settled(elements: np.ndarray[Any, np.dtype[np.object_]], dtype: np.dtype[Any]) -> Known:
    """Return an array of objects as a constant if none of its elements is an expression."""
    if any(is_expression(each) for each in elements.reshape(-1)):
        return Sizes(elements, dtype)
    values = [float(each) if dtype.kind == "f" else each for each in elements.reshape(-1)]
    constant: Array = np.array(values, dtype).reshape(elements.shape)
    return constant


def _dtype(element_type: int) -> np.dtype[Any]:
    from onnx.helper import tensor_dtype_to_np_dtype

    dtype: np.dtype[Any] = np.dtype(tensor_dtype_to_np_dtype(element_type))
    return dtype
