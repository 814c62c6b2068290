"""Operators of ONNX on quantized tensors, written as operators on numbers between dequantization and quantization.

That is the one form of quantized networks from here on, whichever a model has.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def expand_qoperators(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with operators on quantized tensors replaced by other nodes, as far as they are known.

    Before: `y = QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point)`.
    After: `y = QuantizeLinear(Conv(DequantizeLinear(x, ...), DequantizeLinear(w, ...)), y_scale, y_zero_point)`.
    """
    import onnx

    ranks = {tensor.name: len(tensor.dims) for tensor in model.graph.initializer}
    expanded: list[onnx.NodeProto] = []
    found = False
    for node in model.graph.node:
        expansion = EXPANSIONS.get((node.domain.replace("ai.onnx", ""), node.op_type))
        nodes = expansion(Replacement(node, ranks)) if expansion is not None else None
        expanded += [node] if nodes is None else nodes
        found = found or nodes is not None
    if not found:
        return model
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    result.graph.node.extend(expanded)
    return result


class Replacement:
    """The nodes that replace a node; the last one gets the output of the replaced node."""

    def __init__(self, node: onnx.NodeProto, ranks: Mapping[str, int]) -> None:
        """Start with none; `ranks` are the numbers of axes of the model's weights, by name."""
        import onnx

        self.node = node
        self.ranks = ranks
        self.attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        self._nodes: list[onnx.NodeProto] = []

    def operand(self, index: int) -> str:
        """Return the name of an operand; an empty text for one that is left out."""
        return self.node.input[index] if index < len(self.node.input) else ""

    def add(self, operator: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return the name of its output."""
        from onnx import helper

        name = f"{self.node.output[0]}_{operator}_{len(self._nodes)}"
        given = list(inputs)
        while given and not given[-1]:
            given.pop()
        self._nodes.append(helper.make_node(operator, given, [name], **attributes))
        return name

    def dequantized(self, index: int, axis: int = 1) -> str:
        """Add the dequantization of an operand whose scale and zero point are the two operands after it."""
        return self.add("DequantizeLinear", *(self.operand(index + each) for each in range(3)), axis=axis)

    def quantized(self, y: str, scale: int) -> list[onnx.NodeProto]:
        """Return all nodes, with the quantization of y at the end; `scale` is the index of the scale's operand."""
        self.add("QuantizeLinear", y, self.operand(scale), self.operand(scale + 1))
        return self.nodes()

    def nodes(self) -> list[onnx.NodeProto]:
        """Return all nodes, of which the last one gets the output of the replaced node."""
        self._nodes[-1].output[0] = self.node.output[0]
        return self._nodes

    def bias(self, index: int, scales: Sequence[str], axis: int = 0) -> str:
        """Add the dequantization of a bias in int32, whose scale is the product of two; nothing for one left out."""
        if not self.operand(index):
            return ""
        return self.add("DequantizeLinear", self.operand(index), self.add("Mul", *scales), axis=axis)


Expansion = Callable[[Replacement], "list[onnx.NodeProto] | None"]


def _convolution(new: Replacement) -> list[onnx.NodeProto]:
    x, w = new.dequantized(0), new.dequantized(3, axis=0)
    bias = new.bias(8, (new.operand(1), new.operand(4)))
    return new.quantized(new.add("Conv", x, w, bias, **new.attributes), 6)


def _product(new: Replacement) -> list[onnx.NodeProto]:
    return new.quantized(new.add("MatMul", new.dequantized(0, axis=-2), new.dequantized(3, axis=-1)), 6)


def _integer_convolution(new: Replacement) -> list[onnx.NodeProto]:
    """Return the convolution of both operands in int32, less their zero points: sums of them are exact."""
    from onnx import TensorProto, helper

    centered = []
    for index in range(2):
        operand = new.add("Cast", new.operand(index), to=TensorProto.INT32)
        if zero_point := new.operand(index + 2):
            zero_point = new.add("Cast", zero_point, to=TensorProto.INT32)
            if index == 1:  # one for each filter
                rank = new.ranks.get(new.operand(1), 2 + len(new.attributes.get("kernel_shape", (1, 1))))
                shape = helper.make_tensor("shape", TensorProto.INT64, [rank], [-1, *(1,) * (rank - 1)])
                zero_point = new.add("Reshape", zero_point, new.add("Constant", value=shape))
            operand = new.add("Sub", operand, zero_point)
        centered.append(operand)
    new.add("Conv", *centered, **new.attributes)
    return new.nodes()


def _layer(new: Replacement) -> list[onnx.NodeProto]:
    """Return a Gemm; without a scale for its output, that stays in floating point."""
    from onnx import helper

    attributes = dict(new.attributes)
    alpha, scales = attributes.get("alpha", 1.0), (new.operand(1), new.operand(4))
    if alpha != 1.0 and new.operand(6):
        factor = new.add("Constant", value=helper.make_tensor("alpha", 1, [], [alpha]))
        scales = (new.add("Mul", scales[0], factor), scales[1])
    a, b = new.dequantized(0), new.dequantized(3, axis=0 if attributes.get("transB") else 1)
    y = new.add("Gemm", a, b, new.bias(6, scales, axis=-1), **attributes)
    return new.quantized(y, 7) if new.operand(7) else new.nodes()


def _binary(operator: str) -> Expansion:
    return lambda new: new.quantized(new.add(operator, new.dequantized(0), new.dequantized(3)), 6)


def _unary(operator: str) -> Expansion:
    def expansion(new: Replacement) -> list[onnx.NodeProto] | None:
        attributes = dict(new.attributes)
        if attributes.pop("channels_last", 0):
            return None
        return new.quantized(new.add(operator, new.dequantized(0), **attributes), 3)

    return expansion


def _concatenation(new: Replacement) -> list[onnx.NodeProto]:
    tensors = [new.dequantized(index) for index in range(2, len(new.node.input), 3)]
    return new.quantized(new.add("Concat", *tensors, **new.attributes), 0)


def _of_onnx(new: Replacement) -> list[onnx.NodeProto]:
    new.add(new.node.op_type, *new.node.input, **new.attributes)
    return new.nodes()


EXPANSIONS: dict[tuple[str, str], Expansion] = {
    ("", "ConvInteger"): _integer_convolution,
    ("", "QLinearConv"): _convolution,
    ("", "QLinearMatMul"): _product,
    ("com.microsoft", "DequantizeLinear"): _of_onnx,
    ("com.microsoft", "QGemm"): _layer,
    ("com.microsoft", "QLinearAdd"): _binary("Add"),
    ("com.microsoft", "QLinearAveragePool"): _unary("AveragePool"),
    ("com.microsoft", "QLinearConcat"): _concatenation,
    ("com.microsoft", "QLinearGlobalAveragePool"): _unary("GlobalAveragePool"),
    ("com.microsoft", "QLinearLeakyRelu"): _unary("LeakyRelu"),
    ("com.microsoft", "QLinearMul"): _binary("Mul"),
    ("com.microsoft", "QLinearSigmoid"): _unary("Sigmoid"),
    ("com.microsoft", "QuantizeLinear"): _of_onnx,
}
"""The nodes for an operator, by its domain and name."""
