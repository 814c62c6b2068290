"""Convolutions as functions on arrays; while torch traces its tensors, they are operators of torch."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from numpy import ndarray

from tvmconv.problem.dtypes import OutDType
from tvmconv.problem.parameters import Activation, Padding, PlainLayout
from tvmconv.problem.precision import DEFAULT, Word

from .arrays import NoDataError
from .calls import present
from .operators import call

__all__ = ["conv2d", "depthwise"]


def depthwise(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    dilation: int | Sequence[int] = 1,
    scale: Any = None,
    shift: Any = None,
    activation: Activation = None,
    target: Any = None,
    *,
    precision: Word = DEFAULT,
    out: Any = None,
) -> Any:
    """Convolve x (N, C, H, W) depthwise with w (C, M, R, S): `activation(y * scale + shift)`, (N, C*M, Ho, Wo).

    x and w are both float32, both float16 or both bfloat16 (in NumPy that of `ml_dtypes`), summed in float32, and may
    be NumPy arrays, torch tensors (on a GPU: on the current stream) or any arrays with DLPack; the result is of the
    same kind on the same device. scale and shift are vectors (C*M,) in float32 or in the dtype of x. For padding,
    dilation and activation see `ConvWorkload.depthwise`, for precision `compile`. `target` is the device of x unless it
    is given. `out` is an array to write to and return instead of a new one, as for `Operator`. Tensors of torch in
    channels_last are as for `conv2d`. Kernels are compiled on first use, tuned as `compile` says, and kept. For
    gradients see `tvmconv.nn`. Raises `InvalidArgumentError` for an array or an option that is wrong, `NoDeviceError`
    where the target's device is missing.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 32, 112, 112).astype("float32")
    >>> w = np.random.rand(32, 1, 3, 3).astype("float32")
    >>> tvmconv.depthwise(x, w, stride=2, activation="relu").shape
    (1, 32, 56, 56)
    """
    options = stride, padding, dilation, activation
    if type(x) is ndarray or not is_traced():
        try:
            return call("depthwise", options, "auto", precision, target, present(x, w, scale, shift, None), out)
        except NoDataError:  # for tensors of torch.vmap and of the device "meta"
            pass
    return _by_torch("depthwise", depthwise, (x, w, scale, shift, None), options, "auto", precision, target, out)


def conv2d(
    x: Any,
    w: Any,
    stride: int | Sequence[int] = 1,
    padding: Padding = "SAME",
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    scale: Any = None,
    shift: Any = None,
    residual: Any = None,
    activation: Activation = None,
    algorithm: str = "auto",
    target: Any = None,
    *,
    precision: Word = DEFAULT,
    layout: PlainLayout = "NCHW",
    out_dtype: OutDType | None = None,
    x_zero_point: int = 0,
    out_zero_point: int = 0,
    out: Any = None,
) -> Any:
    """Convolve x (N, C, H, W) with w (K, C/groups, R, S): `activation(y * scale + shift + residual)`.

    The result is (N, K, Ho, Wo); a residual has its shape and dtype, scale and shift are vectors (K,). `algorithm` is
    "auto", which takes what a tuning log has found fastest, or else what should be; "direct"; "im2win"; "winograd", for
    3x3 kernels, on a GPU for 5x5 too; "tensor", for the tensor cores of a GPU; or on a CPU "pointwise", for 1x1
    kernels, and "dot", for dot products of integers and bfloat16. With as many groups as input channels, so with a
    single one too, a convolution is depthwise. The rest is as for `depthwise`.

    A torch tensor x in channels_last goes in as it is where a schedule takes it: on a GPU's tensor cores, by the
    algorithm "tensor", for output channels in fours, with groups in sixteens; and on a GPU where each channel is
    convolved by itself to one output, by "depthwise_nhwc". The result is then in channels_last, and so must `out` be; w
    and a residual that are not are copied in every call. Elsewhere x is copied in every call, which this module's
    logger says, and the result is contiguous. With the `layout` "NHWC" arrays of any kind have the shapes
    (N, H, W, C), (K, R, S, C/groups) and (N, Ho, Wo, K); it is refused where no schedule takes it.

    On a CPU or tensor cores x may be of int8 or uint8, w of int8. Sums of `(x - x_zero_point) * w` are exact; padding
    adds nothing. The result is these sums in int32, without an epilogue; or in another `out_dtype`, the residual's too,
    what the epilogue makes of them in float32: in "int8" and "uint8" rounded, to even, plus `out_zero_point`,
    saturated. Of float16 and bfloat16 the result may be in the `out_dtype` "float32". Raises what `depthwise` raises:
    `InvalidArgumentError` and `NoDeviceError`.

    >>> import numpy as np, tvmconv
    >>> x = np.random.rand(1, 64, 56, 56).astype("float32")
    >>> w = np.random.rand(128, 64, 3, 3).astype("float32")
    >>> tvmconv.conv2d(x, w, stride=2, activation="relu").shape
    (1, 128, 28, 28)
    """
    options = stride, padding, dilation, activation, groups, layout, out_dtype, x_zero_point, out_zero_point
    if type(x) is ndarray or not is_traced():
        try:
            return call("conv2d", options, algorithm, precision, target, present(x, w, scale, shift, residual), out)
        except NoDataError:
            pass
    return _by_torch("conv2d", conv2d, (x, w, scale, shift, residual), options, algorithm, precision, target, out)


def is_traced() -> bool:
    """Return whether torch records the operators that are called: to compile, to export or to count them."""
    torch = sys.modules.get("torch")
    return torch is not None and (
        torch.compiler.is_dynamo_compiling() or torch._C._len_torch_dispatch_stack() > 0 or torch._C._is_tracing()
    )


def _by_torch(kind: str, function: Any, arrays: tuple[Any, ...], *rest: Any) -> Any:
    """Call the operator of torch for a convolution of tensors; other arrays are computed directly."""
    from .torch.convolution import convolution

    return convolution(kind, function, arrays, *rest)
