"""Schedules for CPUs."""

from . import depthwise, direct, im2win, pointwise, sparse

__all__ = ["depthwise", "direct", "im2win", "pointwise", "sparse"]
