"""Schedules for NVIDIA GPUs."""

from . import (
    attention,
    depthwise,
    depthwise_bands,
    depthwise_nhwc,
    depthwise_planes,
    gate,
    grouped,
    matvec,
    shallow,
    sparse,
    tensor,
)
from .gradients import diagonals as weight_gradient_diagonals
from .gradients import input as input_gradient
from .gradients import input_nhwc as input_gradient_nhwc
from .gradients import weight as weight_gradient
from .gradients import weight_nhwc as weight_gradient_nhwc
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
    "grouped",
    "im2win",
    "input_gradient",
    "input_gradient_nhwc",
    "linear",
    "matvec",
    "shallow",
    "sparse",
    "tensor",
    "weight_gradient",
    "weight_gradient_diagonals",
    "weight_gradient_nhwc",
    "winograd",
]
