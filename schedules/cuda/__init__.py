"""Schedules for NVIDIA GPUs."""

from . import (
    attention,
    depthwise,
    depthwise_bands,
    depthwise_nhwc,
    depthwise_planes,
    gate,
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
    "attention",
    "depthwise",
    "depthwise_bands",
    "depthwise_nhwc",
    "depthwise_planes",
    "direct",
    "gate",
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
