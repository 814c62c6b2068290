"""Schedules for CPUs."""

from . import amx, depthwise, direct, dot, gradients, pointwise, sparse, winograd
from .direct import im2win
from .dot import depthwise_dot

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
