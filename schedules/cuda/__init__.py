"""Schedules for NVIDIA GPUs."""

from . import depthwise, direct, im2win, sparse, tensor

__all__ = ["depthwise", "direct", "im2win", "sparse", "tensor"]
