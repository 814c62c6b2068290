"""Depthwise convolutions as layers of torch, with gradients: by tvmconv's kernels, on CPUs and GPUs.

`functional` has them as functions, `replace` puts them into a model that has torch's.
"""

from ..errors import MissingPackageError

try:
    import torch  # noqa: F401
except ImportError:
    raise MissingPackageError("torch", "torch", "tvmconv.nn") from None

from . import functional
from .modules import DepthwiseConv1d, DepthwiseConv2d, replace

__all__ = ["DepthwiseConv1d", "DepthwiseConv2d", "functional", "replace"]
