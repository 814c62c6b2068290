"""Inputs of an ONNX model with the shapes that they are imported with: numbers, and names of open sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from keyword import iskeyword

import onnx

from ..errors import InvalidArgumentError
from .sizes import FUNCTIONS, OpenSize, open_size


def inputs_with_shapes(
    inputs: Sequence[onnx.ValueInfoProto], shapes: Mapping[str, Sequence[int | str]]
) -> tuple[list[onnx.ValueInfoProto], list[OpenSize]]:
    """Return the inputs of a model with identifiers for their open sizes, and these sizes with their bounds.

    `shapes` are the shapes of inputs that replace their own. Raises `InvalidArgumentError` unless each is for an input
    with as many axes.
    """
    given = _checked(shapes, inputs)
    names = _Identifiers()
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

    def __missing__(self, name: str) -> str:
        base = re.sub(r"\W+", "_", name)
        if not base.isidentifier() or iskeyword(base) or base in RESERVED or base.strip("_") == "":
            base = f"size_{base}" if base[:1].isdigit() or base.strip("_") == "" else f"{base}_"
        identifier, count = base, 1
        while identifier in self.values():
            identifier, count = f"{base}_{count}", count + 1
        self[name] = identifier
        return identifier


def _checked(
    shapes: Mapping[str, Sequence[int | str]], inputs: Sequence[onnx.ValueInfoProto]
) -> dict[str, list[int | OpenSize]]:
    """Return the shapes; raise `InvalidArgumentError` unless each is for an input with as many axes."""
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
