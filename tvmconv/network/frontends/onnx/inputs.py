"""Inputs of an ONNX model with the shapes that they are imported with: numbers, and names of open sizes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from keyword import iskeyword

import onnx

from tvmconv.problem.errors import InvalidArgumentError

from ...graph.sizes import FUNCTIONS, OpenSize, open_size


def inputs_with_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]
) -> tuple[list[onnx.ValueInfoProto], list[OpenSize]]:
    """Return the inputs of a model with identifiers for their open sizes, and these sizes with their bounds.

    `shapes` replace the shapes of inputs, by name. Raises `InvalidArgumentError` unless each is for an input with the
    same number of axes.
    """
    given = _checked(shapes, inputs)
    in_model = [
        dim.dim_param for value in inputs if value.name not in given for dim in value.type.tensor_type.shape.dim
    ]
    names = _Identifiers(
        [*in_model, *(size.name for shape in given.values() for size in shape if isinstance(size, OpenSize))]
    )
    shaped, sizes = [], []
    for value in inputs:
        copy = onnx.ValueInfoProto()
        copy.CopyFrom(value)
        for axis, dim in enumerate(copy.type.tensor_type.shape.dim):
            size = given[value.name][axis] if value.name in given else _size(value.name, axis, dim)
            if isinstance(size, int):
                dim.dim_value = size
                continue
            name = names[size.name]
            dim.dim_param = name
            sizes.append(OpenSize(name, size.least, size.most))
        shaped.append(copy)
    return shaped, sizes


def _size(name: str, axis: int, dim: onnx.TensorShapeProto.Dimension) -> int | OpenSize:
    """Return the size of an axis of an input; one without a number or a name is named after the input."""
    if dim.HasField("dim_value") and dim.dim_value >= 0:
        return int(dim.dim_value)
    return OpenSize(dim.dim_param or f"{name}_{axis}")


RESERVED = frozenset((*FUNCTIONS, "I", "R", "T"))
"""Names that mean something else in conditions, and in TVM's texts of sizes."""


class _Identifiers(dict[str, str]):
    """Identifiers of Python by the names of sizes: batch_size for "batch.size", class_ for "class"."""

    def __init__(self, names: Iterable[str]) -> None:
        """Take the names that are identifiers as they are."""
        super().__init__((name, name) for name in names if _is_identifier(name))

    def __missing__(self, name: str) -> str:
        identifier = re.sub(r"\W+", "_", name)
        if identifier[:1].isdigit() or not identifier.strip("_"):
            identifier = f"size_{identifier}"
        while not _is_identifier(identifier) or identifier in self.values():
            identifier += "_"
        self[name] = identifier
        return identifier


def _is_identifier(name: str) -> bool:
    return name.isidentifier() and not iskeyword(name) and name not in RESERVED


def _checked(
    shapes: Mapping[str, Sequence[int | str]], inputs: Sequence[onnx.ValueInfoProto]
) -> dict[str, list[int | OpenSize]]:
    """Return the shapes; raise `InvalidArgumentError` for a shape of no input, or of another rank than its input."""
    axes = {value.name: len(value.type.tensor_type.shape.dim) for value in inputs}
    checked: dict[str, list[int | OpenSize]] = {}
    for name, shape in shapes.items():
        if name not in axes:
            raise InvalidArgumentError("shapes", name, f"inputs of the model: {', '.join(axes)}")
        parsed = [open_size(size) if isinstance(size, str) else size for size in shape]
        sizes = [size for size in parsed if isinstance(size, OpenSize) or (isinstance(size, int) and 0 < size < 2**31)]
        if len(shape) != axes[name] or len(sizes) < len(shape):
            expected = f"{axes[name]} sizes for {name}, from 1 to {2**31 - 1} or open as in 'n' or 'n<=64'"
            raise InvalidArgumentError("shapes", shape, expected)
        checked[name] = sizes
    return checked
