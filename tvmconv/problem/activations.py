"""The activations that a convolution's kernel can have as its last step: each is one row of `ACTIVATIONS`.

A row's definition is written once, in operators and the functions of `Arithmetic`. It is read as a float32 expression
of TVM for kernels and in float64 NumPy for references (`compute.functions`), and as a formula to be recognized in
networks (`network.sites.formulas`). A model whose importer writes another formula needs it among the row's `forms`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import e, inf, log2, pi, sqrt
from numbers import Real
from typing import Any, Literal, Protocol

from .errors import InvalidArgumentError

MAX_FLOAT32 = 3.4028235e38

Values = tuple[float | None, ...]
"""The values of an activation's parameters, in the order of the row; None is for a missing bound."""

Name = Literal[
    "relu", "relu6", "clip", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "leaky_relu",
    "elu",
]  # fmt: skip
"""The names of the rows, for type checkers."""

Argument = Name | str | Sequence[str | float | None] | None
"""An activation as callers give it: its name, or a sequence of its name and the values of its parameters."""


class Arithmetic(Protocol):
    """The functions that definitions are made of, besides +, -, * and / with numbers. All of them keep NaN."""

    def exp(self, y: Any) -> Any:
        """Return e to the power of y."""

    def expm1(self, y: Any) -> Any:
        """Return exp(y) - 1 for y of at most 0 or little more, with all digits near 0."""

    def erf(self, y: Any) -> Any:
        """Return the error function."""

    def tanh(self, y: Any) -> Any:
        """Return the hyperbolic tangent."""

    def clip(self, y: Any, low: float | None, high: float | None) -> Any:
        """Return y limited to the bounds; None is no bound."""

    def where_negative(self, y: Any, then: Any, otherwise: Any) -> Any:
        """Return `then` where y < 0, `otherwise` elsewhere and where y is NaN."""


@dataclass(frozen=True)
class Activation:
    """An activation: its name, its definition, and the error of its float32 expression."""

    name: str
    definition: Callable[..., Any]
    """The function `definition(arithmetic, y, *values)`, with torch's formula.

    NaN and infinities therefore come out as torch's do.
    """
    parameters: Mapping[str, float | None] = field(default_factory=dict)
    """The names of the parameters that a caller chooses, with defaults; None for one that has to be given."""
    fixed: Values = ()
    """The values of the definition's parameters where a caller chooses none."""
    steepest: Callable[..., float] = lambda *values: 1.0
    """A function of the values for the largest absolute derivative, by which an error of y may grow."""
    roundings: float = 0.0
    """The error of the float32 expression for the float64 one of the same y, at most, in units of 2**-24 times
    `max(|f(y)|, steepest * min(|y|, 1))`; tests measure it over all magnitudes of y."""
    operations: int = 0
    """The approximate number of instructions of the float32 expression."""
    to_half: Callable[..., Any] | None = None
    """The function to 2**-18 by a GPU's hardware functions, for results that are rounded to half precision."""
    half_operations: int = 0
    """The approximate number of instructions of a GPU where results are rounded to half precision; 0 for
    `operations`."""
    torch: str = ""
    """The name of the function in `torch.nn.functional`, which takes the values in the same order."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Further arguments of torch's function."""
    relax: str = ""
    """The name of Relax's operator, whose only number is called alpha; "" where Relax has none."""
    forms: tuple[Callable[..., Any], ...] = ()
    """The formulas that importers write for the function, where they differ from it."""
    is_homogeneous: bool = False
    """True if f(c * y) = c * f(y) for every c above 0; bounds are not asked."""

    def values(self, given: Sequence[Any]) -> Values:
        """Return the values of the definition, from those that a caller gives for the first parameters."""
        if len(given) > len(self.parameters):
            raise InvalidArgumentError(
                "activation", (self.name, *given), f"{self._signature()}, with no more than its parameters"
            )
        values: list[float | None] = []
        for index, (name, default) in enumerate(self.parameters.items()):
            if index >= len(given) and default is None:
                raise InvalidArgumentError("activation", (self.name, *given), f"{self._signature()}, with {name}")
            value = given[index] if index < len(given) else default
            is_bound = self.definition is clip
            if is_bound and (value is None or value == (-inf, inf)[index]):
                values.append(None)
            elif isinstance(value, Real) and not isinstance(value, bool) and abs(float(value)) <= MAX_FLOAT32:
                values.append(float(value))
            else:
                expected = "a number that float32 holds" + (", or None" if is_bound else "")
                raise InvalidArgumentError(f"{name} of activation {self.name!r}", value, expected)
        if self.definition is clip and len(values) == 2:
            low, high = values
            if low is not None and high is not None and low > high:
                raise InvalidArgumentError(f"low of activation {self.name!r}", low, f"at most high, {high}")
        return tuple(values) if self.parameters else self.fixed

    def _signature(self) -> str:
        return repr(self.name) if not self.parameters else f"({', '.join([repr(self.name), *self.parameters])})"


def clip(of: Arithmetic, y: Any, low: float | None, high: float | None) -> Any:
    """Return y between bounds; this is the definition of all activations that are bounds."""
    return of.clip(y, low, high)


def _gelu(of: Arithmetic, y: Any) -> Any:
    return y * 0.5 * (of.erf(y * sqrt(0.5)) + 1.0)


def _gelu_to_half(of: Any, y: Any) -> Any:
    """Return y times the share of a normal distribution below y; its tail is two to the power of a polynomial."""
    size = of.abs(y)
    power = size * TAIL[-1]
    for coefficient in reversed(TAIL[1:-1]):
        power = (power + coefficient) * size
    tail = of.exp2(power + TAIL[0])
    return y * of.where_negative(y, tail, 1.0 - tail)


TAIL = (
    -0.999996901,
    -1.15120852,
    -0.458637595,
    -0.053704381,
    0.00833262131,
    -0.000870036951,
    5.14034218e-05,
    -1.16790375e-06,
)
"""The coefficients of log2 of the share of a normal distribution above y, for y from 0 to 8 and beyond.

They are fitted such that y times the share has an error of 2**-18, or of 2e-10 where it is less than 6e-5.
"""


def _gelu_tanh_to_half(of: Any, y: Any) -> Any:
    """Return y times a sigmoid, to which tanh / 2 + 1 / 2 is equal."""
    return y / (of.exp2(y * (y * y * (0.044715 * SIGMOID) + SIGMOID)) + 1.0)


SIGMOID = -2 * sqrt(2 / pi) * log2(e)
"""The first coefficient of `_like_erf`, scaled for a power of two instead of tanh."""


def _gelu_tanh(of: Arithmetic, y: Any) -> Any:
    return y * 0.5 * (of.tanh(_like_erf(y)) + 1.0)


def _gelu_tanh_by_series(of: Any, y: Any) -> Any:
    """Return GELU by tanh as tvmconv's importer of torch writes the tanh of a model's own formula."""
    return y * 0.5 * (_tanh_by_series(of, _like_erf(y)) + 1.0)


def _like_erf(y: Any) -> Any:
    """Return the number whose tanh is near to the error function of y times the root of a half."""
    return (y * y * y * 0.044715 + y) * sqrt(2 / pi)


def _sigmoid(of: Arithmetic, y: Any) -> Any:
    return 1.0 / (of.exp(-y) + 1.0)


def _silu(of: Arithmetic, y: Any) -> Any:
    return y / (of.exp(-y) + 1.0)


def _tanh(of: Arithmetic, y: Any) -> Any:
    return of.tanh(y)


def _tanh_by_series(of: Any, y: Any) -> Any:
    """Return tanh as tvmconv's importer of torch writes it, with Taylor's series near 0."""
    square = y * y
    series = y * (((square * (-17 / 315) + 2 / 15) * square + -1 / 3) * square + 1.0)
    return of.where_negative(of.abs(y) - 0.05, series, of.tanh(y))


def _hardsigmoid(of: Arithmetic, y: Any) -> Any:
    return of.clip(y + 3.0, 0.0, 6.0) / 6.0


def _hardswish(of: Arithmetic, y: Any) -> Any:
    return y * _hardsigmoid(of, y)


def _leaky_relu(of: Arithmetic, y: Any, negative_slope: float) -> Any:
    # TVM takes a product with 0 for 0, also that of an infinity, which is NaN.
    return of.where_negative(y, y * negative_slope, y) if negative_slope else of.clip(y, 0.0, None)


def _elu(of: Arithmetic, y: Any, alpha: float) -> Any:
    return of.where_negative(y, of.expm1(of.clip(y, None, 0.0)) * alpha, y)


def _elu_of_clips(of: Arithmetic, y: Any, alpha: float) -> Any:
    return of.clip(y, 0.0, None) - of.clip(1.0 - of.exp(y), 0.0, None) * alpha


def _at_least_one(value: float) -> float:
    return max(1.0, abs(value))


ACTIVATIONS = {
    row.name: row
    for row in (
        Activation("relu", clip, fixed=(0.0, None), torch="relu", relax="relax.nn.relu"),
        Activation("relu6", clip, fixed=(0.0, 6.0), torch="relu6", relax="relax.nn.relu6"),
        Activation("clip", clip, {"low": None, "high": None}, torch="hardtanh"),
        Activation(
            "gelu",
            _gelu,
            steepest=lambda: 1.13,
            roundings=20,
            operations=22,
            to_half=_gelu_to_half,
            half_operations=12,
            torch="gelu",
            relax="relax.nn.gelu",
        ),
        Activation(
            "gelu_tanh",
            _gelu_tanh,
            steepest=lambda: 1.13,
            roundings=6,
            operations=32,
            to_half=_gelu_tanh_to_half,
            half_operations=8,
            torch="gelu",
            options={"approximate": "tanh"},
            relax="relax.nn.gelu_tanh",
            forms=(_gelu_tanh_by_series,),
        ),
        Activation(
            "silu",
            _silu,
            steepest=lambda: 1.1,
            roundings=3,
            operations=22,
            half_operations=5,
            torch="silu",
            relax="relax.nn.silu",
        ),
        Activation(
            "sigmoid",
            _sigmoid,
            steepest=lambda: 0.25,
            roundings=3,
            operations=22,
            half_operations=4,
            torch="sigmoid",
            relax="relax.sigmoid",
        ),
        Activation(
            "tanh",
            _tanh,
            roundings=4,
            operations=26,
            torch="tanh",
            relax="relax.tanh",
            forms=(_tanh_by_series,),
        ),
        Activation(
            "hardswish",
            _hardswish,
            steepest=lambda: 1.5,
            roundings=3,
            operations=6,
            torch="hardswish",
        ),
        Activation("hardsigmoid", _hardsigmoid, steepest=lambda: 1 / 6, roundings=2, operations=5, torch="hardsigmoid"),
        Activation(
            "leaky_relu",
            _leaky_relu,
            {"negative_slope": 0.01},
            steepest=_at_least_one,
            roundings=2,
            operations=2,
            torch="leaky_relu",
            relax="relax.nn.leakyrelu",
            is_homogeneous=True,
        ),
        Activation(
            "elu",
            _elu,
            {"alpha": 1.0},
            steepest=_at_least_one,
            roundings=3,
            operations=20,
            torch="elu",
            forms=(_elu_of_clips,),
        ),
    )
}
"""The activations by their names, in the order in which docs/networks.md lists them."""

CONSTANTS = (
    *(sqrt(0.5), sqrt(2.0), sqrt(2 / pi), 0.044715, 0.044715 * sqrt(2 / pi)),
    *(1 / 6, 0.05, -1 / 3, 2 / 15, -17 / 315),
)
"""Numbers of the definitions and forms, which a model holds rounded to its dtype."""


def resolve_activation(activation: Argument) -> tuple[Activation, Values]:
    """Return the row and the values of an activation as callers give it; None is the clip without bounds."""
    if activation is None:
        return ACTIVATIONS["clip"], (None, None)
    name, *given = [activation] if isinstance(activation, str) else activation if _is_named(activation) else [None]
    if not isinstance(name, str) or name not in ACTIVATIONS:
        known = ", ".join(row._signature() for row in ACTIVATIONS.values())
        raise InvalidArgumentError("activation", activation, f"None or one of {known}")
    return ACTIVATIONS[name], ACTIVATIONS[name].values(given)


def _is_named(activation: Any) -> bool:
    return isinstance(activation, (tuple, list)) and len(activation) > 0
