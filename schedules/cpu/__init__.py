"""Schedules for CPUs."""

from . import depthwise, direct, dot, im2win, pointwise, sparse, winograd

__all__ = ["depthwise", "direct", "dot", "im2win", "pointwise", "sparse", "winograd"]
