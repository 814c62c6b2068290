"""A node of an ONNX graph as the converters of tvmconv see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from .constants import Array, constant_value, static_shape
from .faults import Refused
from .import_builder import ImportBuilder
from .size_facts import Size

OPEN_HINT = "export the model with static shapes, or give them as `shapes` (--input-shapes)"


@dataclass(frozen=True)
class Node:
    """An ONNX node to convert: its operator, operands and attributes."""

    builder: ImportBuilder
    operator: str
    operands: Sequence[Any]
    """The operands, None for one that is left out; those at the end may also be missing."""
    attributes: Mapping[str, Any]
    opset: int
    outputs: int
    """The number of the node's outputs, including those that are left out."""

    def operand(self, place: int) -> Any:
        """Return an operand; None for one that is left out."""
        return self.operands[place] if place < len(self.operands) else None

    def constant(self, place: int, name: str) -> Array | None:
        """Return the value of an operand, None for one left out; raise `Refused` if it is known only at run time."""
        if (operand := self.operand(place)) is None:
            return None
        if isinstance(operand, relax.ShapeExpr):
            sizes = static_shape(relax.TensorType(operand, "float32"))
            return self._known(None if sizes is None else np.array(sizes, np.int64), name)
        return self._known(constant_value(operand), name)

    def sizes(self, place: int, name: str) -> list[Size]:
        """Return the elements of an operand with sizes; raise `Refused` if they are known only at run time."""
        value = self.constant(place, name)
        return [] if value is None else [int(size) for size in value.reshape(-1)]

    def _known(self, value: Array | None, name: str) -> Array:
        if value is None:
            raise Refused(f"its {name} is known only when the model runs", "make it a constant of the model")
        return value

    def shape(self, place: int = 0) -> tuple[int, ...]:
        """Return the shape of an operand; raise `Refused` where it is known only when the model runs."""
        shape = static_shape(self.operands[place].ty)
        if shape is None:
            raise Refused("the shape of its input is known only when the model runs", OPEN_HINT)
        return shape

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a string."""
        value = self.attributes.get(name)
        return default if value is None else value.decode()

    def emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder.emit(value)


Converter = Callable[[Node], relax.Expr]
