"""Schedules for CPUs."""

from . import depthwise, direct, dot, im2win, pointwise, sparse

__all__ = ["depthwise", "direct", "dot", "im2win", "pointwise", "sparse"]
