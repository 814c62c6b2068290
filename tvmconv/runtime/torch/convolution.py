"""The operator of torch for `tvmconv.conv2d` and `tvmconv.depthwise`, for tracing, batching, counting."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import handle_torch_function, has_torch_function

from tvmconv.problem.activations import resolve_activation
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import is_integer, pair, resolve_padding
from tvmconv.problem.workload import ConvWorkload

from ..arrays import wanting_gradients
from ..calls import present
from ..operators import OPTIONS, as_text, call
from .library import define_without_gradients, fixed_shape, is_exported
from .plain import padded

TENSORS = ("x", "w", "scale", "shift", "residual")
"""The names of the tensors, in order."""

INTEGERS = (torch.int8, torch.uint8)


class Arguments(NamedTuple):
    """The arguments of the operator, in the order of its schema."""

    x: Tensor
    w: Tensor
    scale: Tensor | None
    shift: Tensor | None
    residual: Tensor | None
    stride: Sequence[int]
    padding: Sequence[int]
    padding_word: str | None
    """"SAME" or "VALID", instead of numbers."""
    dilation: Sequence[int]
    activation: str | None
    """The activation's name, and the values of its parameters behind it, with spaces between."""
    groups: int | None
    """None for `tvmconv.depthwise`, whose weight is (C, M, R, S)."""
    layout: str
    out_dtype: str | None
    x_zero_point: int
    out_zero_point: int
    algorithm: str
    precision: str
    target: str | None

    @property
    def kind(self) -> str:
        return "depthwise" if self.groups is None else "conv2d"

    @property
    def options(self) -> tuple[Any, ...]:
        """The options as `operators.call` takes them."""
        of_all = _one(self.stride), self.padding_word or _one(self.padding), _one(self.dilation), self.activation_given
        others = self.groups, self.layout, self.out_dtype, self.x_zero_point, self.out_zero_point
        return of_all if self.groups is None else (*of_all, *others)

    @property
    def activation_given(self) -> Any:
        """The activation as callers give it."""
        name, *values = (self.activation or "").split(" ")
        if not values:
            return name or None
        return (name, *(None if value == "None" else float(value) for value in values))

    @property
    def order(self) -> torch.memory_format:
        """The order of the result in memory: channels_last where x has it, else contiguous."""
        is_last = self.layout == "NCHW" and not self.x.is_contiguous()
        is_last = is_last and self.x.is_contiguous(memory_format=torch.channels_last)
        return torch.channels_last if is_last else torch.contiguous_format

    @property
    def dtype(self) -> torch.dtype:
        """The type of the result."""
        if self.out_dtype is not None:
            return getattr(torch, self.out_dtype)
        return torch.int32 if self.x.dtype in INTEGERS else self.x.dtype

    def in_nchw(self) -> tuple[Tensor, Tensor]:
        """Return x (N, C, H, W) and w (K, C / groups, R, S)."""
        x, w = self.x, self.w
        if self.groups is None:
            return x, w.reshape(w.shape[0] * w.shape[1], 1, *w.shape[2:])
        return (x.permute(0, 3, 1, 2), w.permute(0, 3, 1, 2)) if self.layout == "NHWC" else (x, w)

    def geometry(self) -> tuple[tuple[int, int], tuple[int, int, int, int], tuple[int, int]]:
        """Return stride, padding (top, left, bottom, right) and dilation."""
        x, w = self.in_nchw()
        strides, dilations = pair("stride", _one(self.stride)), pair("dilation", _one(self.dilation))
        padding = self.padding_word or _one(self.padding)
        *_, rows, columns = fixed_shape(w)
        return strides, resolve_padding(padding, x.shape[2:], (rows, columns), strides, dilations), dilations

    def require(self) -> None:
        """Refuse tensors and options that do not go together; sizes that torch leaves open are not checked."""
        for name, tensor in zip(TENSORS, self[:5], strict=True):
            if tensor is not None and tensor.device != self.x.device:
                raise InvalidArgumentError(name, f"on {tensor.device}", f"a tensor on {self.x.device}, as x is")
        if self.w.dtype != (torch.int8 if self.x.dtype in INTEGERS else self.x.dtype):
            raise InvalidArgumentError("w", self.w.dtype, f"torch.int8 or {self.x.dtype}, which goes with x")
        shapes = [(1, *self.x.shape[1:]) if self.x.dim() == 4 else tuple(self.x.shape), tuple(self.w.shape)]
        if all(type(size) is int for shape in shapes for size in shape):
            extra = {name: True for name in TENSORS[2:] if getattr(self, name) is not None}
            named = dict(zip(OPTIONS, self.options, strict=False)) | extra
            dtype = str(self.x.dtype).removeprefix("torch.")
            getattr(ConvWorkload, self.kind)(*shapes, dtype=dtype, **named)

    def output_shape(self) -> list[Any]:
        """Return the shape of the result."""
        (x, w), (strides, padding, dilations) = self.in_nchw(), self.geometry()
        rows, columns = (
            (size + padding_before + padding_after - spread * (taps - 1) - 1) // step + 1
            for size, padding_before, padding_after, spread, taps, step in zip(
                x.shape[2:], padding[:2], padding[2:], dilations, w.shape[2:], strides, strict=True
            )
        )
        return [x.shape[0], *((rows, columns, w.shape[0]) if self.layout == "NHWC" else (w.shape[0], rows, columns))]


def convolution(
    kind: str,
    function: Any,
    arrays: tuple[Any, ...],
    options: tuple[Any, ...],
    algorithm: str,
    precision: str,
    target: Any,
    out: Any,
) -> Any:
    """Return the convolution of tensors by the operator of torch, or by torch's own operators in an exported program.

    `kind` is "conv2d" or "depthwise"; the rest is what the `function` of this name in `tvmconv` passes on. Arrays that
    are not torch's are computed directly.
    """
    if not any(isinstance(array, Tensor) or hasattr(type(array), "__torch_function__") for array in arrays):
        return call(kind, options, algorithm, precision, target, present(*arrays), out)
    if has_torch_function(arrays):  # as in torch.fx.symbolic_trace
        named = dict(zip(OPTIONS, options, strict=False)) | present(*arrays)
        named |= {"precision": precision, "target": target, "out": out}
        return handle_torch_function(function, arrays, **named | ({"algorithm": algorithm} if kind == "conv2d" else {}))
    for name, array in zip(TENSORS, arrays, strict=True):
        if not isinstance(array, Tensor) and (array is not None or name in TENSORS[:2]):
            raise InvalidArgumentError(name, f"a {type(array).__name__}", "a tensor of torch, as others are")
    stride, padding, dilation, activation, *others = options
    is_word = isinstance(padding, str)
    values: list[Any] = [
        *arrays,
        _integers("stride", stride),
        [] if is_word else _integers("padding", padding),
        padding if is_word else None,
        _integers("dilation", dilation),
        activation if activation is None or isinstance(activation, str) else " ".join(map(str, activation)),
        *(others or (None, "NCHW", None, 0, 0)),
        algorithm,
        precision,
        target if target is None or isinstance(target, str) else as_text(target),
    ]
    arguments = Arguments(*values)
    try:
        result = (_plain if is_exported() else conv2d)(*arguments)
    except AssertionError as error:  # torch's, where some tensors are fake
        raise InvalidArgumentError(
            "x", f"a {type(arrays[0]).__name__}", f"tensors all fake, or none: {error}"
        ) from None
    if out is None:
        return result
    if not isinstance(out, Tensor) or out.shape != result.shape or out.dtype != result.dtype:
        value = f"{out.dtype} of the shape {tuple(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
        raise InvalidArgumentError("out", value, f"a tensor of {result.dtype} of the shape {tuple(result.shape)}")
    return out.copy_(result)


def _integers(name: str, value: Any) -> list[int]:
    if is_integer(value):
        return [value]
    if isinstance(value, Sequence) and not isinstance(value, str) and all(map(is_integer, value)):
        return list(value)
    raise InvalidArgumentError(name, value, "an integer or several")


def _one(values: Sequence[int]) -> Any:
    """Return numbers as callers give them: a single number if it stands for all."""
    return values[0] if len(values) == 1 else tuple(values)


def _compute(*arguments: Any) -> Tensor:
    of = Arguments(*arguments)
    operands = present(*(None if each is None else each.detach() for each in of[:5]))
    result = call(of.kind, of.options, of.algorithm, of.precision, of.target, operands, None)
    return result.contiguous(memory_format=of.order)


def _fake(*arguments: Any) -> Tensor:
    of = Arguments(*arguments)
    of.require()
    return torch.empty(of.output_shape(), dtype=of.dtype, device=of.x.device, memory_format=of.order)


def _plain(*arguments: Any) -> Tensor:
    """Return the result by torch's own operators: exact for integers, rounded before the epilogue in half precision."""
    of = Arguments(*arguments)
    if not torch.compiler.is_dynamo_compiling():  # which would trace the checks, too
        of.require()
    (x, w), (stride, sides, dilation) = of.in_nchw(), of.geometry()
    groups = x.shape[1] if of.groups is None else of.groups
    if of.x.dtype in INTEGERS:  # whose sums float64 holds
        x, w = x.double() - of.x_zero_point, w.double()
    elif of.dtype != of.x.dtype:
        x, w = x.float(), w.float()
    x, padding = padded(x, sides)
    y = functional.conv2d(x, w, None, stride, padding, dilation, groups)
    if of.scale is not None or of.shift is not None or of.residual is not None or of.activation is not None:
        y = y.float()
    if of.scale is not None:
        y = y * of.scale.float().reshape(-1, 1, 1)
    if of.shift is not None:
        y = y + of.shift.float().reshape(-1, 1, 1)
    if of.residual is not None:
        y = y + (of.residual.permute(0, 3, 1, 2) if of.layout == "NHWC" else of.residual).float()
    row, values = resolve_activation(of.activation_given)
    if row.torch == "hardtanh":
        y = y if values == (None, None) else torch.clamp(y, *values)
    else:
        y = getattr(functional, row.torch)(y, *(() if row.fixed else values), **row.options)
    if of.dtype in INTEGERS:
        limits = torch.iinfo(of.dtype)
        y = torch.clamp(torch.round(y) + of.out_zero_point, limits.min, limits.max)
    y = y.to(of.dtype)
    return y.permute(0, 2, 3, 1).contiguous() if of.layout == "NHWC" else y


def _flops(x: Sequence[int], w: Sequence[int], *rest: Any, out_shape: Any = None) -> int:
    """Return the floating-point operations: a product and a sum for each tap of each result."""
    groups = Arguments(x, w, *rest).groups
    return int(2 * prod(out_shape) * prod(w[2:] if groups is None else w[1:]))


def _refuse(*arguments: Any) -> None:
    wanted = zip(TENSORS, arguments, strict=False)
    raise wanting_gradients(next(name for name, each in wanted if each is not None and each.requires_grad))


conv2d = define_without_gradients(
    "conv2d(Tensor x, Tensor w, Tensor? scale, Tensor? shift, Tensor? residual, int[] stride, int[] padding, "
    "str? padding_word, int[] dilation, str? activation, int? groups, str layout, str? out_dtype, int x_zero_point, "
    "int out_zero_point, str algorithm, str precision, str? target) -> Tensor",
    *(_compute, _fake, _refuse, _plain, _flops),
)
"""The operator that returns what `tvmconv.conv2d` does, or `tvmconv.depthwise` where `groups` is None."""
