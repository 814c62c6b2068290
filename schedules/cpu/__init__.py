"""Schedules for CPUs."""

from . import depthwise, direct, im2win, pointwise, sparse, winograd

__all__ = ["depthwise", "direct", "im2win", "pointwise", "sparse", "winograd"]
