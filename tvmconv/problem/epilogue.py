"""The last steps of a convolution, in registers: scale, shift, residual and activation."""

from __future__ import annotations

from math import inf
from typing import Any

import msgspec

from . import activations
from .activations import ACTIVATIONS
from .errors import InvalidArgumentError
from .parameters import Activation, is_integer


class Function(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An activation that is not bounds alone: its name in `ACTIVATIONS`, and its parameters in the order of the row."""

    name: str
    parameters: tuple[float, ...] = ()


class Epilogue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The operations on an output element in registers before its only store.

    It is `activation(y * scale[k] + shift[k] + residual)`. `scale` and `shift` say whether a vector of that name is an
    operand, one float32 number for each output channel; `residual` whether a tensor of the output's shape and dtype is
    one, which is added element by element. `low` and `high` are the bounds of the activations relu, relu6 and clip,
    None where there is none; `function` is any other activation, and is left out of JSON where there is none. NaN
    passes through all of it.

    Where the output is of integers, the result times `factor` is rounded to the nearest one, of two as near to the even
    one; then `zero_point` is added, and what the type does not hold becomes its least or its largest number. There NaN
    becomes the least. Both are left out of JSON where they change nothing.

    >>> import tvmconv
    >>> workload = tvmconv.ConvWorkload.conv2d((1, 8, 6, 6), (4, 8, 3, 3), shift=True, activation="relu6")
    >>> workload.epilogue.shift, workload.epilogue.low, workload.epilogue.high
    (True, 0.0, 6.0)
    """

    scale: bool = False
    shift: bool = False
    residual: bool = False
    low: float | None = None
    high: float | None = None
    function: Function | msgspec.UnsetType = msgspec.UNSET
    zero_point: int | msgspec.UnsetType = msgspec.UNSET
    factor: float | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        if self.factor is not msgspec.UNSET:
            if not 0 < self.factor < inf:
                raise InvalidArgumentError("factor", self.factor, "a finite number above 0")
            msgspec.structs.force_setattr(self, "factor", msgspec.UNSET if self.factor == 1 else float(self.factor))
        if is_integer(self.zero_point):
            msgspec.structs.force_setattr(self, "zero_point", int(self.zero_point) or msgspec.UNSET)
        if self.function is msgspec.UNSET:
            ACTIVATIONS["clip"].values((self.low, self.high))
            return
        row, values = activations.resolve_activation((self.function.name, *self.function.parameters))
        if row.definition is activations.clip:
            raise InvalidArgumentError("function", self.function.name, "none where the activation is bounds: low, high")
        if (self.low, self.high) != (None, None):
            raise InvalidArgumentError("function", self.function.name, "none where low or high is given")
        if values != self.function.parameters:
            raise InvalidArgumentError(
                "function", self.function, f"all parameters, {', '.join(row.parameters)}, as float"
            )

    @classmethod
    def of(
        cls,
        activation: Activation,
        scale: bool = False,
        shift: bool = False,
        residual: bool = False,
        zero_point: int = 0,
    ) -> Epilogue:
        """Return the epilogue with an activation as callers give it."""
        row, values = activations.resolve_activation(activation)
        if row.definition is activations.clip:
            low, high = values
            return cls(scale, shift, residual, low, high, zero_point=zero_point)
        parameters = tuple(value for value in values if value is not None)
        return cls(scale, shift, residual, function=Function(row.name, parameters), zero_point=zero_point)

    def without_activation(self) -> Epilogue:
        """Return the epilogue without its activation."""
        return Epilogue(self.scale, self.shift, self.residual, zero_point=self.zero_point, factor=self.factor)

    @property
    def row(self) -> activations.Activation:
        """The activation's row of `ACTIVATIONS`, that of clip for all bounds and for none."""
        return ACTIVATIONS["clip" if self.function is msgspec.UNSET else self.function.name]

    @property
    def parameters(self) -> activations.Values:
        """The values of the row's parameters."""
        return (self.low, self.high) if self.function is msgspec.UNSET else self.function.parameters

    def activate(self, arithmetic: activations.Arithmetic, y: Any, to_half: bool = False) -> Any:
        """Apply the activation to y in an arithmetic, perhaps by another formula `to_half` precision."""
        definition = self.row.to_half if to_half and self.row.to_half else self.row.definition
        return definition(arithmetic, y, *self.parameters)

    def operations(self, to_half: bool) -> int:
        """Return the approximate number of instructions that the activation of an element takes."""
        count = self.row.half_operations if to_half and self.row.half_operations else self.row.operations
        return count + (self.low is not None) + (self.high is not None)

    @property
    def activation(self) -> str:
        """The activation's name with its parameters, such as "none", "relu", "clip(0.0,None)" or "elu(1.0)"."""
        if self.function is msgspec.UNSET and self.parameters == (None, None):
            return "none"
        known = (name for name, row in ACTIVATIONS.items() if row.fixed == self.parameters and row.fixed)
        parameters = f"({','.join(map(str, self.parameters))})" if self.parameters else ""
        return next(known, f"{self.row.name}{parameters}")

    def __str__(self) -> str:
        parts = [name for name in ("scale", "shift", "residual") if getattr(self, name)]
        parts += [self.activation] if self.activation != "none" else []
        parts += [f"factor({self.factor:.4g})"] if self.factor is not msgspec.UNSET else []
        parts += [f"zero_point({self.zero_point})"] if self.zero_point is not msgspec.UNSET else []
        return "+".join(parts) or "none"
