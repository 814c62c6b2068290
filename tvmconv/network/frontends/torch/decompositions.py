"""Decompositions of torch's operators that Relax's importer lacks or misreads into other operators of torch.

A decomposition that returns `NotImplemented` leaves the operator as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import reduce
from math import inf, nan, prod
from typing import Any

import torch
from torch import Tensor

from tvmconv.runtime.torch.library import PLAIN

from .recurrent import OPERATORS as RECURRENT
from .resampling import OPERATORS as RESAMPLING
from .types import HALF

aten = torch.ops.aten


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the table for `ExportedProgram.run_decompositions`: torch's own, with those of this file."""
    table = dict(torch.export.default_decompositions().items())
    for name in (*RESAMPLING, *RECURRENT):
        for overload in ("vec", "default", "input"):
            table.pop(getattr(getattr(aten, name, None), overload, None), None)
    return table | DECOMPOSITIONS | PLAIN


def add(x: Tensor, y: Any, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else x + y * alpha


def subtract(x: Tensor, y: Any, alpha: float = 1) -> Any:
    return NotImplemented if alpha == 1 else x - y * alpha


def subtract_from(x: Tensor, y: Any, alpha: float = 1) -> Any:
    return torch.neg(x if alpha == 1 else x * alpha) + y


def multiply(x: Any, y: Any) -> Any:
    """Multiply by a zero as torch does: NaN where the tensor is NaN or infinite, for which TVM has zero."""
    factor, other = (x, y) if isinstance(x, (int, float)) else (y, x)
    if not isinstance(factor, (int, float)) or factor != 0 or not other.is_floating_point():
        return NotImplemented
    return torch.where(other.abs() < inf, 0.0, nan).to(other.dtype)


def unequal(x: Tensor, y: Any) -> Any:
    """Return `x != x`, which is true where x is NaN; TVM takes it for false."""
    return torch.isnan(x) if x is y else NotImplemented


def equal(x: Tensor, y: Any) -> Any:
    return torch.logical_not(torch.isnan(x)) if x is y else NotImplemented


def elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Any:
    if scale == input_scale == 1 and alpha >= 0:
        return NotImplemented
    return torch.where(x > 0, x * scale, torch.expm1(x * input_scale) * (alpha * scale))


def softplus(x: Tensor, beta: float = 1, threshold: float = 20) -> Tensor:
    """Return log(1 + exp(x)), exact far below 0 too."""
    wide = x.to(torch.float32) if x.dtype in HALF else x
    scaled = wide if beta == 1 else wide * beta
    curve = torch.log1p(torch.exp(scaled))
    return torch.where(scaled > threshold, wide, curve if beta == 1 else curve / beta).to(x.dtype)


def clamp(x: Tensor, low: float | None = None, high: float | None = None) -> Any:
    if low is not None and high is not None and low > high:
        return torch.clamp(x, high, high)
    bounds = [bound for bound in (low, high) if bound is not None]
    dtype = reduce(torch.promote_types, (torch.result_type(x, bound) for bound in bounds))
    if dtype.is_floating_point:
        return NotImplemented
    limits = [None if bound is None else torch.scalar_tensor(bound, dtype=dtype) for bound in (low, high)]
    return clamp_by_tensors(x.to(dtype), *limits)


def clamp_from(x: Tensor, low: float) -> Tensor:
    return torch.clamp(x, low, None)


def clamp_to(x: Tensor, high: float) -> Tensor:
    return torch.clamp(x, None, high)


def clamp_by_tensors(x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    x = x if low is None else torch.maximum(x, low)
    return x if high is None else torch.minimum(x, high)


def clamp_to_tensor(x: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(x, high)


def unless_float(x: Tensor) -> Any:
    """Return integers unchanged, as rounding leaves them; keep the operator for floating point."""
    return NotImplemented if x.is_floating_point() else x.clone()


def bitwise_not(x: Tensor) -> Any:
    return torch.logical_not(x) if x.dtype is torch.bool else NotImplemented


def select(x: Tensor, dim: int, index: int) -> Any:
    return x.select(dim, index + x.shape[dim]) if isinstance(index, int) and index < 0 else NotImplemented


def take(x: Tensor, index: Tensor) -> Tensor:
    return x.reshape(-1).index_select(0, index.reshape(-1)).reshape(index.shape)


def embedding(weight: Tensor, index: Tensor, *_: Any) -> Tensor:
    """Return the rows of an embedding; Relax's importer cuts their indices off to int32."""
    rows = weight.index_select(0, index.reshape(-1))
    return rows if index.dim() == 1 else rows.reshape(*index.shape, *weight.shape[1:])


def index(x: Tensor, indices: Sequence[Tensor | None]) -> Any:
    """Return x[indices] as one look-up along one axis, which the indexed axes are joined to.

    Each index is compared with its axis before the axes are joined, so that a column out of range is an error.
    """
    if any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices):
        return NotImplemented
    indexed = [axis for axis, each in enumerate(indices) if each is not None]
    others = [axis for axis in range(x.dim()) if axis not in indexed]
    is_together = indexed == list(range(indexed[0], indexed[-1] + 1))
    position = indexed[0] if is_together else 0
    order = [*others[:position], *indexed, *others[position:]]
    flat = x.permute(order) if order != list(range(x.dim())) else x
    sizes = [x.shape[axis] for axis in others]
    if len(indexed) > 1:
        flat = flat.reshape(*sizes[:position], prod(x.shape[axis] for axis in indexed), *sizes[position:])
    where = _index_on_joined_axis(x, indexed, indices)
    elements = flat.index_select(position, where.reshape(-1))
    return elements if where.dim() == 1 else elements.reshape(*sizes[:position], *where.shape, *sizes[position:])


def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """Return x with values at indices, scattered along one axis, which the indexed axes are joined to.

    One value where a mask of the first axes is true is chosen for each element.
    """
    mask = indices[0] if len(indices) == 1 else None
    if mask is not None and mask.dtype is torch.bool and values.dim() == 0 and not accumulate:
        return torch.where(mask.reshape(*mask.shape, *[1] * (x.dim() - mask.dim())), values, x)
    if any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices):
        return NotImplemented
    indexed = [axis for axis, each in enumerate(indices) if each is not None]
    others = [axis for axis in range(x.dim()) if axis not in indexed]
    position = indexed[0] if indexed == list(range(indexed[0], indexed[-1] + 1)) else 0
    order, sizes = [*indexed, *others], [x.shape[axis] for axis in others]
    where = _index_on_joined_axis(x, indexed, indices)
    behind = position + where.dim()
    count, width = prod(where.shape), prod(sizes)
    spread = values.expand([*sizes[:position], *where.shape, *sizes[position:]])
    spread = spread.permute([*range(position, behind), *range(position), *range(behind, spread.dim())])
    ordered = x.permute(order)
    scatter = torch.scatter_add if accumulate else torch.scatter
    flat = ordered.reshape(prod(x.shape[axis] for axis in indexed), width)
    result = scatter(flat, 0, where.reshape(-1, 1).expand(count, width), spread.reshape(count, width))
    return result.reshape(ordered.shape).permute([order.index(axis) for axis in range(x.dim())])


def slice_scatter(x: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Return x with a source instead of the elements from `start` on along an axis of an open size, `step` apart.

    Relax's own operator needs known sizes.
    """
    if all(isinstance(size, int) for size in (*x.shape, *source.shape)):
        return NotImplemented
    first, count = 0 if start is None else start, source.shape[dim]
    if isinstance(first, int) and first < 0:
        first = torch.sym_max(x.shape[dim] + first, 0)
    if step > 1:
        behind = torch.arange(x.shape[dim], device=x.device) - first
        is_part = (behind >= 0) & (behind % step == 0) & (behind < count * step)
        index = torch.clamp(behind // step, 0, count - 1)
        is_part = is_part.reshape([-1 if axis == dim % x.dim() else 1 for axis in range(x.dim())])
        return torch.where(is_part, source.index_select(dim, index), x)
    reaches_end = end is None or (isinstance(end, int) and end == sys.maxsize)
    front = [] if isinstance(first, int) and first == 0 else [aten.slice(x, dim, 0, first)]
    back = [] if reaches_end else [aten.slice(x, dim, first + count, sys.maxsize)]
    return torch.cat([*front, source, *back], dim) if front or back else source.clone()


def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """Scatter the part of a source that its indices cover, where the source is larger than the indices."""
    if source.shape == index.shape:
        return NotImplemented
    return torch.scatter(x, dim, index, _as_large(source, index))


def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    return NotImplemented if source.shape == index.shape else x.scatter_add(dim, index, _as_large(source, index))


def _as_large(source: Tensor, index: Tensor) -> Tensor:
    for dim, size in enumerate(index.shape):
        source = source.narrow(dim, 0, size)
    return source


def _index_on_joined_axis(x: Tensor, axes: Sequence[int], indices: Sequence[Tensor | None]) -> Tensor:
    """Return the index, along the axis that these axes are joined to, for their indices together."""
    total: Any = None
    for axis in axes:
        one = indices[axis] if len(axes) == 1 else _counted(indices[axis], x.shape[axis])
        total = one if total is None else total * x.shape[axis] + one
    return total


def _counted(index: Tensor | None, size: int) -> Tensor:
    """Return indices of an axis from its start, by a look-up that `index_ranges` compares with the axis."""
    assert index is not None
    return torch.arange(size, device=index.device).index_select(0, index.reshape(-1)).reshape(index.shape)


def any_of(x: Tensor, dims: Sequence[int] | None = None, keepdim: bool = False) -> Any:
    """Return whether any element is true: along axes, for each element if `dims` is empty, of all if it is None."""
    if x.dtype is not torch.bool:
        x = x != 0
    elif dims:
        return NotImplemented
    if dims is not None and not dims:
        return x.clone()
    return torch.any(x, list(range(x.dim())) if dims is None else dims, keepdim) if x.dim() else x.clone()


def any_of_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return any_of(x, [dim], keepdim)


def vector_norm(
    x: Tensor, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Tensor:
    """Return the norm; powers of half precision are computed in float32."""
    dims = list(range(x.dim())) if dim is None else [dim] if isinstance(dim, int) else list(dim)
    result = x.dtype if dtype is None else dtype
    x = x.to(torch.float32 if result in HALF else result).abs()
    if order == inf:
        norm = x.amax(dims, keepdim)
    elif order == -inf:
        norm = x.amin(dims, keepdim)
    elif order == 0:
        norm = (x != 0).to(x.dtype).sum(dims, keepdim)
    elif order == 1:
        norm = x.sum(dims, keepdim)
    elif order == 2:
        norm = (x * x).sum(dims, keepdim).sqrt()
    else:
        norm = (x**order).sum(dims, keepdim) ** (1 / order)
    return norm.to(result)


def variance_and_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return torch.var(x, dim, correction=1 if correction is None else correction, keepdim=keepdim), x.mean(
        list(range(x.dim())) if dim is None else dim, keepdim
    )


def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return the variance along axes of open sizes, by the number of their elements."""
    dims = list(range(x.dim())) if not dim else [dim] if isinstance(dim, int) else list(dim)
    count = prod(x.shape[each] for each in dims)
    if isinstance(count, int):
        return NotImplemented
    squares = (x - x.mean(dims, keepdim=True)) ** 2
    return squares.sum(dims, keepdim) / (count - (1 if correction is None else correction))


def deviation(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    """Return the root of the variance; Relax's importer leaves out the correction of a deviation."""
    return torch.var(x, dim, correction=1 if correction is None else correction, keepdim=keepdim).sqrt()


def instance_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    _: bool,
) -> Any:
    """Return the norm of groups of one channel, for open batches, too: torch's own joins batch and channels."""
    if not use_input_stats:
        return torch.nn.functional.batch_norm(x, mean, variance, weight, bias, False, momentum, eps)
    if mean is not None:
        raise NotImplementedError("an instance norm changes its running statistics, as in training")
    return torch.nn.functional.group_norm(x, x.shape[1], weight, bias, eps)


def linspace(start: Any, end: Any, steps: int, *, dtype: torch.dtype | None = None, **options: Any) -> Any:
    """Leave equal steps between known numbers to torch, whose own decomposition rounds integers in another way."""
    if not isinstance(start, Tensor) and not isinstance(end, Tensor):
        return NotImplemented
    if dtype is not None and not dtype.is_floating_point:
        raise NotImplementedError("the ends of equal steps between integers are known only when the model runs")
    return torch._refs.linspace(start, end, steps, dtype=dtype, **options)


def pad_circular(x: Tensor, widths: Sequence[int]) -> Tensor:
    """Return x with its end repeated in front of each of the last axes, and its beginning behind; negative widths crop.

    Torch's own decomposition writes to parts of an empty tensor.
    """
    for number, (before, after) in enumerate(zip(widths[::2], widths[1::2], strict=True)):
        axis = x.dim() - 1 - number
        if before < 0 or after < 0:
            x = x.narrow(axis, max(-before, 0), x.shape[axis] + min(before, 0) + min(after, 0))
        front = [x.narrow(axis, x.shape[axis] - before, before)] if before > 0 else []
        back = [x.narrow(axis, 0, after)] if after > 0 else []
        x = torch.cat([*front, x, *back], axis) if front or back else x
    return x


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.add.Scalar: add,
    aten.add.Tensor: add,
    aten.any.default: any_of,
    aten.any.dim: any_of_dim,
    aten.any.dims: any_of,
    aten.bitwise_not.default: bitwise_not,
    aten.ceil.default: unless_float,
    aten.clamp.Tensor: clamp_by_tensors,
    aten.clamp.default: clamp,
    aten.clamp_max.Tensor: clamp_to_tensor,
    aten.clamp_max.default: clamp_to,
    aten.clamp_min.Tensor: torch.maximum,
    aten.clamp_min.default: clamp_from,
    aten.embedding.default: embedding,
    aten.eq.Tensor: equal,
    aten.ne.Tensor: unequal,
    aten.elu.default: elu,
    aten.floor.default: unless_float,
    aten.index.Tensor: index,
    aten.index_put.default: index_put,
    aten.instance_norm.default: instance_norm,
    aten.linalg_vector_norm.default: vector_norm,
    aten.linspace.default: linspace,
    aten.linspace.Scalar_Tensor: linspace,
    aten.linspace.Tensor_Scalar: linspace,
    aten.linspace.Tensor_Tensor: linspace,
    aten._pad_circular.default: pad_circular,
    aten.round.default: unless_float,
    aten.mul.Scalar: multiply,
    aten.mul.Tensor: multiply,
    aten.rsub.Scalar: subtract_from,
    aten.rsub.Tensor: subtract_from,
    aten.scatter.src: scatter,
    aten.scatter_add.default: scatter_add,
    aten.select.int: select,
    aten.slice_scatter.default: slice_scatter,
    aten.softplus.default: softplus,
    aten.sub.Scalar: subtract,
    aten.sub.Tensor: subtract,
    aten.take.default: take,
    aten.trunc.default: unless_float,
    aten.std.correction: deviation,
    aten.var.correction: variance,
    aten.var_mean.correction: variance_and_mean,
}
