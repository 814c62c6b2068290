"""Schedules for CPUs."""

from . import amx, depthwise, direct, dot, pointwise, sparse, winograd
from .direct import im2win
from .dot import depthwise_dot
from .gradients import input as input_gradient
from .gradients import weight as weight_gradient

__all__ = [
    "amx",
    "depthwise",
    "depthwise_dot",
    "direct",
    "dot",
    "im2win",
    "input_gradient",
    "pointwise",
    "sparse",
    "weight_gradient",
    "winograd",
]
