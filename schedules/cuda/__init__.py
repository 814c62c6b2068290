"""Schedules for NVIDIA GPUs."""

from . import (
    depthwise,
    depthwise_bands,
    depthwise_nhwc,
    depthwise_planes,
    gradients,
    grouped,
    matvec,
    shallow,
    sparse,
    tensor,
)
from .gradients import nhwc as gradients_nhwc
from .simt import direct, im2win
from .tensor import linear, winograd

__all__ = [
    "depthwise",
    "depthwise_bands",
    "depthwise_nhwc",
    "depthwise_planes",
    "direct",
    "gradients",
    "gradients_nhwc",
    "grouped",
    "im2win",
    "linear",
    "matvec",
    "shallow",
    "sparse",
    "tensor",
    "winograd",
]
