"""Schedules for NVIDIA GPUs."""

from . import depthwise, direct, gradients, im2win, sparse, tensor

__all__ = ["depthwise", "direct", "gradients", "im2win", "sparse", "tensor"]
