"""Nodes of random ONNX graphs: what may be put behind what is there, as networks that people export do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi import onnxruntime_pybind11_state

Array = np.ndarray[Any, Any]

OPSET, IR = 18, 9

LARGEST = 1e3
"""The largest number that a node may give; larger ones leave no digits for the others."""

ELEMENTS = 60_000
"""The largest number of elements that a node may give."""


def session(model: onnx.ModelProto) -> Any:
    """Return ONNX Runtime's session of a model as it is written, without optimizations."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _model(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[str], weights: Sequence[Any]) -> Any:
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "random", inputs, results, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR)


class Maker:
    """A graph that grows at random. ONNX Runtime runs each node at once: one that it refuses is not added."""

    def __init__(self, rng: np.random.Generator, open_axes: Mapping[int, str]) -> None:
        self.rng, self.open_axes = rng, open_axes
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Array] = {}
        self.values: dict[str, Array] = {}
        """The arrays of the graph by name, at the sizes of the example."""
        self.exact: set[str] = set()
        """Arrays whose numbers are not rounded, so that they can be compared, counted and sorted."""
        self.shape = (int(rng.integers(1, 4)), int(rng.choice([3, 4, 8])), *(int(rng.integers(7, 17)) for _ in "hw"))
        self.shape_names: list[int | str] = [open_axes.get(axis, size) for axis, size in enumerate(self.shape)]
        self.sizes = {name: self.shape[axis] for axis, name in open_axes.items()}
        self.inputs = ["x", "y"] if rng.random() < 0.25 else ["x"]
        for name, image in self.images(self.sizes).items():
            self.values[name] = image
            self.exact.add(name)

    def images(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Return the inputs for sizes of open axes."""
        shape = [sizes[each] if isinstance(each, str) else each for each in self.shape_names]
        rng = np.random.default_rng(list(shape))
        return {name: rng.uniform(-1, 1, shape).astype("float32") for name in self.inputs}

    # What converters of nodes ask for.

    def one_of(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def integer(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`, both included."""
        return int(self.rng.integers(low, high + 1))

    def any(self, rank: int | None = None, kinds: str = "f", exact: bool = False) -> str:
        """Return an array of the graph, more often one of the last; raise `UnfitError` where none is of that rank."""
        names = [
            name
            for name, value in self.values.items()
            if name not in self.weights
            and value.dtype.kind in kinds
            and value.dtype != np.int64
            and rank in (None, value.ndim)
            and (not exact or name in self.exact)
        ]
        if not names:
            raise UnfitError
        if self.rng.random() < 0.7:
            return names[-1]
        return names[int(self.rng.integers(len(names)))]

    def shape_of(self, name: str) -> tuple[int, ...]:
        return self.values[name].shape

    def axis_of(self, name: str) -> int:
        rank = self.values[name].ndim
        if not rank:
            raise UnfitError
        return self.integer(-rank, rank - 1)

    def weight(self, *shape: int) -> str:
        scale = 1 / max(np.sqrt(np.prod(shape[1:])), 1)
        return self.constant(self.rng.normal(0, scale, shape).astype("float32"))

    def constant(self, value: Any, dtype: str | None = None) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = self.values[name] = np.asarray(value, dtype)
        return name

    def ints(self, *values: int) -> str:
        return self.constant(values, "int64")

    def node(self, operator: str, *inputs: str, outputs: int = 1, keeps: bool = False, **attributes: Any) -> str:
        """Add a node and return its first output, the others of which have numbers behind the name.

        Of exact numbers a node that `keeps` them makes exact ones. Raise `UnfitError` if ONNX Runtime refuses it.
        """
        name = f"v{len(self.nodes)}"
        names = [name, *(f"{name}_{each}" for each in range(1, outputs))]
        node = helper.make_node(operator, inputs, names, name=f"{operator}_{len(self.nodes)}", **attributes)
        operands = {each: self.values[each] for each in inputs if each}
        kept = {each: value for each, value in operands.items() if each in self.weights}
        given = [
            helper.make_tensor_value_info(each, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
            for each, value in operands.items()
            if each not in kept
        ]
        weights = [numpy_helper.from_array(value, each) for each, value in kept.items()]
        try:
            run = session(_model([node], given, names, weights)).run
            results = run(None, {each: value for each, value in operands.items() if each not in kept})
        except REFUSALS as error:
            raise UnfitError from error
        for value in results:
            if not value.size or value.size > ELEMENTS or value.ndim > 6:
                raise UnfitError
            if value.dtype.kind == "f" and not np.abs(value).max() <= LARGEST:
                raise UnfitError
        self.nodes.append(node)
        self.values.update(zip(names, results, strict=True))
        if keeps and all(each in self.exact or each in self.weights for each in operands):
            self.exact.update(names)
        return name

    def size(self, name: str, axis: int) -> str:
        """Add the size of an axis, as an array of one element."""
        axis %= self.values[name].ndim
        way = self.integer(0, 2)
        if way == 0:
            return self.node("Shape", name, start=axis, end=axis + 1)
        shape = self.node("Shape", name)
        if way == 1:
            return self.node("Gather", shape, self.ints(axis))
        return self.node("Slice", shape, self.ints(axis), self.ints(axis + 1), self.ints(0))

    def model(self) -> onnx.ModelProto:
        """Return the graph; its outputs are the last arrays that no node takes, at most three."""
        used = {name for node in self.nodes for name in node.input}
        ends = [name for name in self.values if name not in used and name not in self.weights and name[0] == "v"]
        outputs = ends[-3:]
        nodes, needed = [], set(outputs)
        for node in reversed(self.nodes):
            if needed.intersection(node.output):
                nodes.insert(0, node)
                needed.update(node.input)
        inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, self.shape_names) for name in self.inputs]
        weights = [numpy_helper.from_array(value, name) for name, value in self.weights.items() if name in needed]
        return _model(nodes, [each for each in inputs if each.name in needed], outputs, weights)


REFUSALS = tuple(
    getattr(onnxruntime_pybind11_state, name)
    for name in ("Fail", "InvalidArgument", "RuntimeException", "NotImplemented", "InvalidGraph")
)


class UnfitError(Exception):
    """What was to be added does not fit what is there."""


def _pads(m: Maker, kernel: Sequence[int]) -> dict[str, Any]:
    """Return the attributes of the margins of a window."""
    if m.rng.random() < 0.2:
        return {"auto_pad": m.one_of("SAME_UPPER", "SAME_LOWER", "VALID")}
    return {"pads": [m.integer(0, k // 2) for _ in "be" for k in kernel]}


def conv(m: Maker) -> str:
    x = m.any(4)
    channels = m.shape_of(x)[1]
    kernel = m.one_of([1, 1], [3, 3], [3, 3], [5, 5], [1, 3], [2, 2])
    groups = m.one_of(1, 1, channels)
    filters = groups * m.one_of(1, 2) if groups > 1 else m.one_of(4, 8, 5)
    stride = m.one_of([1, 1], [1, 1], [2, 2], [2, 1])
    same = _pads(m, kernel)
    dilation = [1, 1] if "auto_pad" in same else m.one_of([1, 1], [1, 1], [2, 2])
    weight = m.weight(filters, channels // groups, *kernel)
    bias = (m.weight(filters),) if m.rng.random() < 0.7 else ()
    return m.node(
        "Conv", x, weight, *bias, group=groups, strides=stride, dilations=dilation, kernel_shape=kernel, **same
    )


def conv_transpose(m: Maker) -> str:
    x, kernel = m.any(4), m.one_of([2, 2], [3, 3], [4, 4])
    weight = m.weight(m.shape_of(x)[1], 4, *kernel)
    stride = m.one_of([1, 1], [2, 2])
    pads = [m.integer(0, 1) for _ in range(4)]
    return m.node("ConvTranspose", x, weight, strides=stride, kernel_shape=kernel, pads=pads)


def pool(m: Maker) -> str:
    x, kernel = m.any(4), m.one_of([2, 2], [3, 3], [1, 2], [5, 5])
    operator = m.one_of("MaxPool", "AveragePool")
    more = {"count_include_pad": m.integer(0, 1)} if operator == "AveragePool" else {}
    margins = _pads(m, kernel)
    if "pads" in margins:
        more["ceil_mode"] = m.integer(0, 1)
    stride = m.one_of([1, 1], [2, 2], kernel)
    pads = margins.get("pads", [2] * 4)
    if any(size + a + b < k for size, k, a, b in zip(m.shape_of(x)[2:], kernel, pads[:2], pads[2:], strict=True)):
        raise UnfitError  # ONNX Runtime rounds the negative size of the output up to 1
    return m.node(operator, x, kernel_shape=kernel, strides=stride, keeps=operator == "MaxPool", **margins, **more)


def activation(m: Maker) -> str:
    operator = m.one_of(
        "Relu", "Relu", "Sigmoid", "Tanh", "HardSwish", "LeakyRelu", "Elu", "HardSigmoid", "Softplus", "Neg", "Abs"
    )
    return m.node(operator, m.any(), keeps=operator in ("Relu", "Neg", "Abs"))


def clip(m: Maker) -> str:
    return m.node("Clip", m.any(), m.constant(-0.5, "float32"), m.constant(0.75, "float32"), keeps=True)


def normalized(m: Maker) -> str:
    operator = m.one_of("BatchNormalization", "InstanceNormalization", "LayerNormalization")
    x = m.any(4 if operator != "LayerNormalization" else None)
    if operator == "LayerNormalization":
        return m.node(operator, x, m.weight(m.shape_of(x)[-1]), axis=-1, epsilon=0.02)
    channels = m.shape_of(x)[1]
    more = [m.weight(channels), m.constant(m.rng.uniform(0.5, 2, channels), "float32")]
    more = more if operator == "BatchNormalization" else []
    return m.node(operator, x, m.weight(channels), m.weight(channels), *more, epsilon=0.02)


def of_two(m: Maker) -> str:
    """Join two arrays of the graph, by element or along an axis."""
    x, y = m.any(), m.any()
    if m.rng.random() < 0.3:
        return m.node("Concat", x, y, axis=m.axis_of(x), keeps=True)
    return m.node(m.one_of("Add", "Mul", "Sub", "Max", "Min"), x, y, keeps=False)


def of_a_weight(m: Maker) -> str:
    """Join an array and a weight that has some of its sizes, or 1."""
    x = m.any()
    if not m.values[x].ndim:
        raise UnfitError
    shape = [m.one_of(1, size) if axis != 1 else size for axis, size in enumerate(m.shape_of(x))]
    weight = m.weight(*shape[m.integer(0, len(shape) - 1) :])
    operands = (x, weight) if m.rng.random() < 0.5 else (weight, x)
    return m.node(m.one_of("Add", "Mul", "Sub", "Max"), *operands)


def where(m: Maker) -> str:
    x, y = m.any(exact=True), m.any()
    return m.node("Where", m.node("Greater", x, m.constant(0.1, "float32"), keeps=True), y, m.any())


def resized(m: Maker) -> str:
    x = m.any(4)
    way = {"mode": m.one_of("nearest", "nearest", "linear")}
    case = m.integer(0, 3)
    # With scales that leave a fraction of a pixel ONNX Runtime aligns other corners than the standard.
    way["coordinate_transformation_mode"] = m.one_of("asymmetric", "half_pixel", *["align_corners"] * (case > 0))
    if way["mode"] == "nearest":
        way["nearest_mode"] = m.one_of("floor", "round_prefer_floor")
    if case == 0:
        return m.node("Resize", x, "", m.constant([1, 1, *m.one_of([2, 2], [0.5, 0.5], [1.5, 2])], "float32"), **way)
    if case == 1:
        leading = [m.size(x, axis) for axis in (0, 1)]
        sizes = m.node("Concat", *leading, m.ints(m.integer(3, 12), m.integer(3, 12)), axis=0)
    elif case == 2:
        other = m.any(4)
        halves = [m.node("Shape", x, start=0, end=2), m.node("Shape", other, start=2, end=4)]
        sizes = m.node("Concat", *halves, axis=0)
    else:
        if 0 in m.open_axes:
            raise UnfitError  # it would resize a batch of another size
        sizes = m.ints(*m.shape_of(x)[:2], m.integer(3, 12), m.integer(3, 12))
    return m.node("Resize", x, "", "", sizes, **way)


def sliced(m: Maker) -> str:
    x = m.any()
    axis = m.axis_of(x)
    size = m.shape_of(x)[axis]
    start = m.one_of(0, 0, 1, 2, -3, size)
    end = m.one_of(2**63 - 1, size, -1, 5, size + 3)
    step = m.one_of(1, 1, 2, -1)
    if step < 0:
        start, end = m.one_of(-1, size), m.one_of(-(2**63), 0, 1)
    ends = m.ints(end)
    if step > 0 and m.rng.random() < 0.4:
        rule = m.one_of(("Div", 2), ("Sub", 1), ("Add", 2))
        ends = m.node(rule[0], m.size(x, axis), m.ints(rule[1]))
    return m.node("Slice", x, m.ints(start), ends, m.ints(axis), m.ints(step), keeps=True)


def cropped(m: Maker) -> str:
    """Cut the rows of an array to those of another one, and join them, as U-Nets do."""
    x, y = m.any(4), m.any(4)
    rows = m.node("Min", m.size(x, 2), m.size(y, 2))
    parts = [m.node("Slice", each, m.ints(0), rows, m.ints(2), keeps=True) for each in (x, y)]
    return m.node("Concat", *parts, axis=1, keeps=True)


def split(m: Maker) -> str:
    x = m.any()
    axis = m.axis_of(x)
    size = m.shape_of(x)[axis]
    if m.rng.random() < 0.5:
        first = m.integer(1, max(size - 1, 1))
        return m.node("Split", x, m.ints(first, size - first), axis=axis, outputs=2, keeps=True)
    return m.node("Split", x, axis=axis, outputs=2, num_outputs=2, keeps=True)


def padded(m: Maker) -> str:
    x = m.any()
    rank = m.values[x].ndim
    mode = m.one_of("constant", "constant", "reflect", "edge", "wrap")
    pads = [m.one_of(0, 0, 1, 2) if axis or mode == "constant" else 0 for _ in "be" for axis in range(rank)]
    if mode == "constant" and m.rng.random() < 0.3:
        pads[m.integer(0, 2 * rank - 1)] = -1
    if m.rng.random() < 0.3 and rank > 2:
        # To a multiple of four.
        missing = m.node("Mod", m.node("Neg", m.size(x, -1)), m.ints(4))
        amounts = m.node("Concat", m.ints(*[0] * (2 * rank - 1)), missing, axis=0)
    else:
        amounts = m.ints(*pads)
    return m.node("Pad", x, amounts, m.constant(0.5, "float32"), mode=mode, keeps=True)


def rolled(m: Maker) -> str:
    """Move elements along an axis, those that leave at one end coming in at the other."""
    x = m.any()
    axis = m.axis_of(x) % m.values[x].ndim
    index, along = m.node("Mod", m.ints(m.one_of(-1, -2, -7, 3)), m.size(x, axis)), m.ints(axis)
    ends = [(index, m.ints(2**63 - 1)), (m.ints(0), index)]
    parts = [m.node("Slice", x, first, end, along, keeps=True) for first, end in ends]
    return m.node("Concat", *parts, axis=axis, keeps=True)


def transposed(m: Maker) -> str:
    x = m.any()
    return m.node("Transpose", x, perm=[int(each) for each in m.rng.permutation(m.values[x].ndim)], keeps=True)


def reshaped(m: Maker) -> str:
    x = m.any()
    shape = m.shape_of(x)
    rank = len(shape)
    way = m.integer(0, 5)
    if way == 0:
        return m.node("Flatten", x, axis=m.integer(0, rank), keeps=True)
    if way == 1 and rank == 4:
        return m.node("Reshape", x, m.ints(0, 0, -1), keeps=True)
    if way == 2 and rank >= 2:
        leading = [m.size(x, axis) for axis in range(rank - 2)]
        joined = m.node("Mul", m.size(x, -1), m.size(x, -2))
        return m.node("Reshape", x, m.node("Concat", *leading, joined, axis=0), keeps=True)
    if way == 3:
        axis = m.axis_of(x) % rank
        parts = [m.node("Div", m.size(x, axis), m.ints(2)), m.ints(2)]
        sizes = [m.size(x, each) for each in range(rank)]
        sizes[axis : axis + 1] = m.one_of(parts, parts[::-1])
        return m.node("Reshape", x, m.node("Concat", *sizes, axis=0), keeps=True)
    if way == 4:
        other = m.any()
        return m.node("Reshape", x, m.node("Shape", other), keeps=True)
    sizes = list(shape)
    sizes[m.integer(0, rank - 1)] = -1
    if m.rng.random() < 0.5:
        at = m.integer(0, rank - 1)
        sizes[at] = 0 if sizes[at] > 0 else sizes[at]
    return m.node("Reshape", x, m.ints(*sizes), keeps=True)


def of_rank(m: Maker) -> str:
    """Add or take away axes of one element."""
    x = m.any()
    rank = m.values[x].ndim
    if m.rng.random() < 0.5:
        return m.node("Unsqueeze", x, m.ints(m.integer(0, rank)), keeps=True)
    ones = [axis for axis, size in enumerate(m.shape_of(x)) if size == 1]
    if not ones:
        raise UnfitError
    axes = (m.ints(m.one_of(*ones)),) if m.rng.random() < 0.7 else ()
    return m.node("Squeeze", x, *axes, keeps=True)


def reduced(m: Maker) -> str:
    operator = m.one_of("ReduceMean", "ReduceMax", "ReduceSum", "ReduceL2", "GlobalAveragePool", "GlobalMaxPool")
    if operator.startswith("Global"):
        return m.node(operator, m.any(4))
    x = m.any()
    return m.node(operator, x, m.ints(m.axis_of(x)), keepdims=m.one_of(1, 1, 0), keeps=operator == "ReduceMax")


def softmax(m: Maker) -> str:
    x = m.any()
    return m.node(m.one_of("Softmax", "Softmax", "LogSoftmax"), x, axis=m.axis_of(x))


def linear(m: Maker) -> str:
    x = m.any()
    rows = m.shape_of(x)[-1] if m.values[x].ndim > 1 else 0
    if not rows:
        raise UnfitError
    y = m.node("MatMul", x, m.weight(rows, m.one_of(4, 8, 6)))
    return m.node("Add", y, m.weight(m.shape_of(y)[-1])) if m.rng.random() < 0.5 else y


def attention(m: Maker) -> str:
    x = m.any()
    rank = m.values[x].ndim
    if rank not in (3, 4):
        raise UnfitError
    order = [*range(rank - 2), rank - 1, rank - 2]
    scores = m.node("MatMul", x, m.node("Transpose", x, perm=order, keeps=True))
    return m.node("MatMul", m.node("Softmax", scores, axis=-1), x)


def expanded(m: Maker) -> str:
    x, y = m.any(), m.any()
    return m.node("Expand", x, m.node("Shape", y), keeps=True)


def tiled(m: Maker) -> str:
    x = m.any()
    return m.node("Tile", x, m.ints(*[m.one_of(1, 1, 2) for _ in m.shape_of(x)]), keeps=True)


def gathered(m: Maker) -> str:
    x = m.any()
    axis = m.axis_of(x)
    size = m.shape_of(x)[axis]
    indices = m.rng.integers(-min(size, 3), min(size, 4), m.one_of([], [2], [1, 3]))
    return m.node("Gather", x, m.constant(indices, "int64"), axis=axis, keeps=True)


def sorted_out(m: Maker) -> str:
    """Find the largest elements, or where they are."""
    x = m.any(exact=True)
    axis = m.axis_of(x)
    if m.rng.random() < 0.5:
        found = m.node("ArgMax", x, axis=axis, keepdims=m.integer(0, 1), keeps=True)
        return m.node("Cast", found, to=TensorProto.FLOAT, keeps=True)
    return m.node("TopK", x, m.ints(m.integer(1, 3)), axis=axis, outputs=2, keeps=True)


def blocks(m: Maker) -> str:
    operator = m.one_of("SpaceToDepth", "DepthToSpace")
    return m.node(operator, m.any(4), blocksize=2, keeps=True)


def positions(m: Maker) -> str:
    """Add the number of each column to it."""
    x = m.any()
    count = m.node("Squeeze", m.size(x, -1), m.ints(0))
    columns = m.node("Range", m.constant(0, "int64"), count, m.constant(1, "int64"))
    scaled = m.node("Mul", m.node("Cast", columns, to=TensorProto.FLOAT), m.constant(0.1, "float32"))
    return m.node("Add", x, scaled)


def filled(m: Maker) -> str:
    """Join an array with one of a constant, of the same shape."""
    x = m.any()
    value = numpy_helper.from_array(np.array([0.25], "float32"))
    return m.node("Concat", x, m.node("ConstantOfShape", m.node("Shape", x), value=value), axis=m.axis_of(x))


def summed_up(m: Maker) -> str:
    x = m.any()
    return m.node("CumSum", x, m.constant(m.axis_of(x), "int64"))


STEPS: dict[Callable[[Maker], str], int] = {
    conv: 12,
    pool: 5,
    activation: 6,
    of_two: 6,
    of_a_weight: 3,
    normalized: 3,
    resized: 4,
    sliced: 4,
    reshaped: 5,
    padded: 3,
    transposed: 2,
    reduced: 3,
    linear: 3,
    conv_transpose: 2,
    clip: 1,
    where: 1,
    cropped: 1,
    split: 2,
    of_rank: 2,
    softmax: 2,
    attention: 1,
    expanded: 2,
    rolled: 1,
    tiled: 1,
    gathered: 2,
    sorted_out: 1,
    blocks: 1,
    positions: 1,
    filled: 1,
    summed_up: 1,
}
"""What may be added, and how often in relation to the others."""


def grow(maker: Maker) -> None:
    """Add three to nine nodes or groups of nodes."""
    steps, chances = list(STEPS), np.array([*STEPS.values()], float)
    left = maker.integer(3, 9)
    while left:
        step = steps[int(maker.rng.choice(len(steps), p=chances / chances.sum()))]
        try:
            step(maker)
        except UnfitError:
            continue
        left -= 1
