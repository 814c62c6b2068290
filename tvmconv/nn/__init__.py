"""Depthwise convolutions as layers of torch, with gradients: by tvmconv's kernels, on CPUs and GPUs.

`functional` has them as functions, `replace` makes torch's layers in a model tvmconv's, and `restore` undoes that.
"""

from tvmconv.problem.errors import MissingPackageError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingPackageError("torch", "torch", "tvmconv.nn") from None

from . import functional
from .modules import DepthwiseConv1d, DepthwiseConv2d, DepthwiseConv2dSame, Replaced, replace, replaced, restore
from .sequences import causal_conv1d_fn, causal_conv1d_update

__all__ = [
    "DepthwiseConv1d",
    "DepthwiseConv2d",
    "DepthwiseConv2dSame",
    "Replaced",
    "causal_conv1d_fn",
    "causal_conv1d_update",
    "functional",
    "replace",
    "replaced",
    "restore",
]
