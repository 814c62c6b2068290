"""Schedules for CPUs."""

from . import amx, depthwise, depthwise_dot, direct, dot, gradients, im2win, pointwise, sparse, winograd

__all__ = [
    "amx",
    "depthwise",
    "depthwise_dot",
    "direct",
    "dot",
    "gradients",
    "im2win",
    "pointwise",
    "sparse",
    "winograd",
]
