"""Problems of convolutions in NCHW."""

from __future__ import annotations

from typing import Any

from tvmconv import ConvWorkload
from tvmconv.problem import Problem


def conv2d(x: tuple[int, ...], w: tuple[int, ...], sparsity: float | None = None, **options: Any) -> Problem:
    """Return a convolution of x (N, C, H, W) with w (K, C / groups, R, S), and a share of zeros that is compiled in."""
    return Problem(ConvWorkload.conv2d(x, w, **options), sparsity)


def depthwise(x: tuple[int, ...], w: tuple[int, ...], sparsity: float | None = None, **options: Any) -> Problem:
    """Return a depthwise convolution of x (N, C, H, W) with w (C, M, R, S), and such a share of zeros."""
    return Problem(ConvWorkload.depthwise(x, w, **options), sparsity)
