"""Sparse convolutions as users make them, for any shape of input.

The weight is an array, a sparse matrix or a pruned module of torch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from os import PathLike
from typing import Any

import numpy as np
import tvm

from tvmconv.dispatch import algorithms_for, tuned
from tvmconv.problem import Problem
from tvmconv.problem.constants import require_finite
from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import Activation, Padding, pair
from tvmconv.problem.workload import ConvWorkload
from tvmconv.support.cache import Cache
from tvmconv.targets import backend_on, resolve_target

from ..arrays import Operand, is_torch
from ..calls import Calls, Launch
from .operator import SparseOperator, compile_operator
from .report import SparseReport

Key = tuple[tuple[int | None, ...], str, str]
"""The shape of an input, with None for a batch that is left open, its dtype, and the target."""

MAX_OPERATORS = 64
"""The largest number of operators that a convolution keeps: each may have megabytes of code."""

DEFAULTS: dict[str, Any] = {"stride": 1, "padding": "SAME", "dilation": 1, "groups": 1}

MEANING = "(K, C / groups, R, S), or (K, C / groups * R * S) with kernel=(R, S)"


class SparseConv2d:
    """A convolution with one weight, compiled for shapes of input that it meets; `sparse_conv2d` makes it.

    The first batch of images of a size has a separate kernel, and so has each batch that logs have records of; all
    other batches share one.

    >>> import numpy as np
    >>> import tvmconv
    >>> weight = np.zeros((4, 8, 3, 3), "float32")
    >>> weight[:, 0, 1, 1] = 2  # of each filter, one number of 72 is left
    >>> twice = tvmconv.sparse_conv2d(weight, target="llvm")
    >>> float(twice(np.ones((1, 8, 6, 6), "float32"))[0, 0, 3, 3])
    2.0
    """

    def __init__(
        self,
        weight: np.ndarray,
        shift: np.ndarray | None,
        residual: bool,
        activation: Activation,
        options: dict[str, Any],
        target: Any,
    ) -> None:
        self.weight = weight
        """The weight (K, C / groups, R, S) in float32, with the scale in it."""
        self._shift = shift
        self._epilogue: dict[str, Any] = {"shift": shift is not None, "residual": residual, "activation": activation}
        self._options = options
        self._target = None if target is None else resolve_target(target)
        self._operators: Cache[Key, SparseOperator] = Cache(MAX_OPERATORS)
        self._calls = Calls()

    def __getstate__(self) -> dict[str, Any]:
        """Let `pickle` and `copy.deepcopy` take all but what calls have prepared."""
        kept = {name: value for name, value in vars(self).items() if name != "_calls"}
        return {**kept, "_operators": list(zip(self._operators, self.operators, strict=True))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _operators=Cache(MAX_OPERATORS), _calls=Calls())
        for key, operator in state["_operators"]:
            self._operators.put(key, operator)

    def __call__(self, x: Any, residual: Any = None, *, out: Any = None) -> Any:
        """Convolve x (N, C, H, W); return an array of the kind of x on the device of x.

        x is float32, float16 or bfloat16, a NumPy array, a torch tensor (on a GPU: on the current stream) or any array
        with DLPack; a residual has the shape and dtype of the result. `out` is an array to write to and return instead
        of a new one, as for `tvmconv.Operator`. The first call with a shape compiles for it, the first with another
        batch of such images for any batch. Raises `InvalidArgumentError` for an array that does not fit the weight,
        `CodeSizeError` for a weight with too many non-zeros.
        """
        arrays = {"x": x} if residual is None else {"x": x, "residual": residual}
        return self._calls(self._prepare, (), arrays, out)

    def operator(self, x_shape: Sequence[int], dtype: str = "float32", target: Any = None) -> SparseOperator:
        """Return the operator for such an x, compiled now if it was not; `target` is "llvm" by default."""
        resolved = resolve_target(target) if target is not None else self._target or resolve_target("llvm")
        return self._cached_operator(tuple(x_shape), dtype, resolved)

    @property
    def operators(self) -> tuple[SparseOperator, ...]:
        """The operators that have been compiled so far."""
        return self._operators.values()

    @cached_property
    def nonzeros(self) -> int:
        """The number of weights that are not zero."""
        return int(np.count_nonzero(self.weight))

    @property
    def sparsity(self) -> float:
        """The share of zeros in the weight."""
        return 1 - self.nonzeros / self.weight.size

    @property
    def report(self) -> SparseReport:
        """The report of the only operator that has been compiled; see `operators` for several."""
        return self._only().report

    def source(self, kind: str = "source") -> str:
        """Return the kernel as text, as `Operator.source`, of the only operator that has been compiled."""
        return self._only().source(kind)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the operator of the one shape that has been compiled; `tvmconv.load` reads it."""
        self._only().save(path)

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.weight.shape))
        return f"<tvmconv.SparseConv2d {shape}, {100 * self.sparsity:.4g}% zeros, {len(self._operators)} compiled>"

    def _only(self) -> SparseOperator:
        if len(self._operators) != 1:
            shapes = [operator.workload.x_shape for operator in self.operators]
            raise InvalidArgumentError("x_shape", shapes, "one compiled shape; operator(x_shape) chooses among several")
        return self.operators[0]

    def _prepare(self, x: Any, operands: list[Operand]) -> Launch:
        """Return the launch of the kernel for arrays like these, compiled if it was not."""
        image = operands[0]
        target = self._target or resolve_target(backend_on(image.device.type).kind)
        shape = tuple(image.shape)
        opened = self._shares(shape, image.dtype, target)
        return self._cached_operator(shape, image.dtype, target, opened).launch(x, operands)

    def _shares(self, x_shape: tuple[int, ...], dtype: str, target: tvm.target.Target) -> bool:
        """Return whether a shape shares a kernel with others that differ in the batch."""
        known = [shape for shape, *rest in self._operators if rest == [dtype, str(target)]]
        if x_shape in known or all(shape[1:] != x_shape[1:] for shape in known):
            return False
        problem = Problem(self._workload(x_shape, dtype), self.sparsity)
        opened = problem.with_any_batch()
        return "sparse" in algorithms_for(opened, target) and not tuned(problem, target)

    def _cached_operator(
        self, x_shape: tuple[int, ...], dtype: str, target: tvm.target.Target, opened: bool = False
    ) -> SparseOperator:
        """Return the operator for a shape, or for any batch of it, compiled on first use."""
        key = (None, *x_shape[1:]) if opened else x_shape, dtype, str(target)
        return self._operators.get(key) or self._operators.get_or_make(
            key, lambda: self._compile(x_shape, dtype, target, ("batch",) if opened else ())
        )

    def _compile(
        self, x_shape: tuple[int, ...], dtype: str, target: tvm.target.Target, open_sizes: tuple[str, ...]
    ) -> SparseOperator:
        workload = self._workload(x_shape, dtype)
        constants = {"w": self.weight.reshape(workload.w_shape)}
        if self._shift is not None:
            constants["shift"] = self._shift
        return compile_operator(workload, constants, target, open_sizes=open_sizes)

    def _workload(self, x_shape: tuple[int, ...], dtype: str) -> ConvWorkload:
        if dtype not in FLOATS:
            raise InvalidArgumentError("x", dtype, f"an array of {one_of(FLOATS)}")
        return ConvWorkload.conv2d(x_shape, self.weight.shape, dtype=dtype, **self._options, **self._epilogue)


def sparse_conv2d(
    weight: Any,
    stride: int | Sequence[int] | None = None,
    padding: Padding | None = None,
    dilation: int | Sequence[int] | None = None,
    groups: int | None = None,
    scale: Any = None,
    shift: Any = None,
    residual: bool = False,
    activation: Activation = None,
    kernel: int | Sequence[int] | None = None,
    x_shape: Sequence[int] | None = None,
    target: Any = None,
) -> SparseConv2d:
    """Return the convolution with a weight of many zeros: `activation(y * scale + shift + residual)`.

    The weight is compiled in: every non-zero is a number in the code, and nothing is left of the zeros. It is
    (K, C / groups, R, S), a NumPy array, a torch tensor or any array with DLPack; a matrix (K, C / groups * R * S),
    also one of scipy.sparse or a sparse one of torch, with `kernel=(R, S)`; or a torch.nn.Conv2d, pruned with
    torch.nn.utils.prune or not, whose bias, stride, padding, dilation and groups are taken unless others are given.
    Stride, dilation and groups are 1 by default, and the padding is "SAME", as for `tvmconv.conv2d`.

    scale and shift are vectors (K,), constants like the weight; `residual` says whether calls bring one. `target` is
    the device of x unless it is given. Compiling takes seconds and is kept on disk for equal weights; it happens in
    the first call with a shape, or now for `x_shape`. NaN and infinity are refused, and -0.0 is a zero: what x holds
    there, NaN too, is not seen. There is no gradient, and a weight that changes needs a new operator. Raises
    `InvalidArgumentError` for a weight or a vector that is wrong, `CodeSizeError` for a weight with too many non-zeros.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 16, 14, 14).astype("float32")
    >>> w = np.random.randn(32, 16, 3, 3) * (np.random.rand(32, 16, 3, 3) < 0.1)
    >>> conv = tvmconv.sparse_conv2d(w, activation="relu")
    >>> conv(x).shape
    (1, 32, 14, 14)
    """
    layer = _as_layer(weight, kernel)
    given = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    options = {**DEFAULTS, **(layer.options or {}), **{name: each for name, each in given.items() if each is not None}}
    channels = len(layer.weight)
    factors = np.ones(channels) if scale is None else _vector("scale", scale, channels)
    shifts = [] if layer.bias is None else [_vector("weight", layer.bias, channels) * factors]
    shifts += [] if shift is None else [_vector("shift", shift, channels)]
    total = require_finite("shift", np.sum(shifts, axis=0)).astype(np.float32) if shifts else None
    folded = require_finite("weight", layer.weight * factors[:, None, None, None]).astype(np.float32)
    made = SparseConv2d(folded, total, residual, activation, options, target)
    if x_shape is not None:
        made.operator(x_shape)
    return made


@dataclass(frozen=True)
class _Layer:
    """A weight (K, C / groups, R, S) in float32, with the settings of the module that it came from."""

    weight: np.ndarray
    bias: np.ndarray | None = None
    options: dict[str, Any] | None = None
    """The stride, padding, dilation and groups; None for a bare weight."""


def _as_layer(weight: Any, kernel: int | Sequence[int] | None) -> _Layer:
    """Return a weight in any of the forms that `sparse_conv2d` takes as a layer."""
    kernel = None if kernel is None else pair("kernel", kernel)
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(weight, torch.nn.Module):
        return _Layer(_in_four(_array("weight", weight), kernel))
    if not isinstance(weight, torch.nn.Conv2d) or weight.padding_mode != "zeros":
        raise InvalidArgumentError("weight", weight, "of torch's modules a Conv2d that pads with zeros")
    padding = weight.padding.upper() if isinstance(weight.padding, str) else weight.padding
    options = {"stride": weight.stride, "padding": padding, "dilation": weight.dilation, "groups": weight.groups}
    bias = None if weight.bias is None else _array("weight", _pruned(weight, "bias"))
    return _Layer(_in_four(_array("weight", _pruned(weight, "weight")), kernel), bias, options)


def _vector(name: str, values: Any, channels: int) -> np.ndarray:
    """Return a finite vector of an epilogue, one number for each output channel, in float64."""
    array = _array(name, values).astype(np.float64)
    if array.shape != (channels,):
        raise InvalidArgumentError(name, array.shape, f"the shape {(channels,)}: a number for each output channel")
    return require_finite(name, array)


def _pruned(module: Any, name: str) -> Any:
    """Return a parameter as `torch.nn.utils.prune` leaves it: the module's own may be stale until the next call."""
    if hasattr(module, f"{name}_mask"):
        return getattr(module, f"{name}_orig") * getattr(module, f"{name}_mask")
    return getattr(module, name)


def _array(name: str, values: Any) -> np.ndarray:
    """Return numbers as a NumPy array, with the zeros that sparse formats leave out."""
    scipy = sys.modules.get("scipy.sparse")
    if scipy is not None and scipy.issparse(values):
        values = values.toarray()
    elif is_torch(values):
        values = values.detach().to_dense().cpu()
        values = (values if values.dtype == sys.modules["torch"].float64 else values.float()).numpy()
    elif not isinstance(values, np.ndarray) and hasattr(values, "__dlpack__"):
        values = np.from_dlpack(values)
    array = np.asarray(values)
    if array.dtype.kind not in "fiu":
        raise InvalidArgumentError(name, f"{type(values).__name__} of {array.dtype}", "real numbers")
    return array


def _in_four(array: np.ndarray, kernel: tuple[int, int] | None) -> np.ndarray:
    if array.ndim == 2 and kernel is not None:
        if min(kernel) < 1 or array.shape[1] % prod(kernel):
            raise InvalidArgumentError("kernel", kernel, f"(R, S) whose product divides {array.shape[1]}")
        array = array.reshape(len(array), -1, *kernel)
    if array.ndim != 4 or (kernel is not None and array.shape[2:] != kernel) or not array.size:
        raise InvalidArgumentError("weight", f"of shape {array.shape} with kernel {kernel}", MEANING)
    return require_finite("weight", array)
