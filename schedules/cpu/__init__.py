"""Schedules for CPUs."""

from . import depthwise, depthwise_dot, direct, dot, gradients, im2win, pointwise, sparse, winograd

__all__ = ["depthwise", "depthwise_dot", "direct", "dot", "gradients", "im2win", "pointwise", "sparse", "winograd"]
