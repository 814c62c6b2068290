"""Schedules for NVIDIA GPUs."""

from . import (
    depthwise,
    depthwise_bands,
    depthwise_nhwc,
    depthwise_planes,
    direct,
    gradients,
    gradients_nhwc,
    grouped,
    im2win,
    linear,
    matvec,
    shallow,
    sparse,
    tensor,
    winograd,
)

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
