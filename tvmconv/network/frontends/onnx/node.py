"""A node of an ONNX graph as the converters of tvmconv see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from ...graph.constants import Array, constant_value, sizes_of, static_shape
from ...graph.faults import Refused
from ...sizes.facts import Size, SizeFacts
from ..builder import ImportBuilder
from .sizes import Sizes

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

    @property
    def facts(self) -> SizeFacts:
        """The facts about the model's open sizes."""
        return self.builder.facts

    def operand(self, index: int) -> Any:
        """Return an operand; None for one that is left out."""
        return self.operands[index] if index < len(self.operands) else None

    def constant(self, index: int, name: str) -> Array | None:
        """Return the value of an operand, None for one left out; raise `Refused` if it is known only at run time."""
        if (operand := self.operand(index)) is None:
            return None
        if (value := None if isinstance(operand, Sizes) else constant_value(operand)) is None:
            raise Refused(f"its {name} is known only when the model runs", "make it a constant of the model")
        return value

    def sizes(self, index: int, name: str) -> list[Size] | None:
        """Return the integers of an operand with at most one axis, some of which may be expressions of open sizes.

        None for an operand that is left out. Raises `Refused` for one that elements of tensors decide.
        """
        if (operand := self.operand(index)) is None:
            return None
        if isinstance(operand, Sizes):
            return operand.listed()
        return [int(each) for each in np.asarray(self.constant(index, name)).reshape(-1)]

    def shape_of(self, index: int = 0) -> tuple[Size, ...]:
        """Return the sizes of an operand, some of which may be open; raise `Refused` where its rank is not known."""
        operand = self.operands[index]
        if isinstance(operand, Sizes):
            return tuple(operand.elements.shape)
        sizes = sizes_of(operand.ty)
        if sizes is None:
            raise Refused("the rank of its input is known only when the model runs", OPEN_HINT)
        return sizes

    def require(self, test: Any, need: str) -> None:
        """Require that a test of open sizes holds in each call; `need` goes on after the node's name."""
        self.builder.require(test, need)

    def choose(self, test: Any, preferred: bool, need: str) -> bool:
        """Return whether a test of open sizes holds, as `SizeFacts.choose` does."""
        return self.facts.choose(test, preferred, self.builder.node, need)

    def shape(self, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an operand; raise `Refused` where it is known only when the model runs."""
        shape = static_shape(self.operands[index].ty)
        if shape is None:
            raise Refused("the shape of its input is known only when the model runs", OPEN_HINT)
        return shape

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis of a tensor of a rank, counted from the first; raise `Refused` for one that it has not."""
        if not -rank <= axis < max(rank, 1):
            raise Refused(f"it has the axis {axis}, and its input {rank} axes", f"an axis from {-rank} to {rank - 1}")
        return axis % max(rank, 1)

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a string."""
        value = self.attributes.get(name)
        return default if value is None else value.decode()

    def emit(self, value: relax.Expr) -> relax.Expr:
        return self.builder.emit(value)


Converter = Callable[[Node], relax.Expr]
