"""The float64 reference of a convolution with any number of groups."""

from __future__ import annotations

import numpy as np

from ..workload import ConvWorkload
from .epilogue import epilogue_reference


def conv2d_reference(
    workload: ConvWorkload,
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """The convolution in float64 NumPy: for each tap of the kernel a matrix product of each group's channels.

    x is (N, C, H, W), w is `workload.w_shape`, scale and shift are (K,); residual and the result, in
    float64, are (N, K, Ho, Wo).
    """
    top, left, bottom, right = workload.padding
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (top, bottom), (left, right)))
    padded = padded.reshape(workload.batch, workload.groups, -1, *padded.shape[2:])
    taps = w.astype(np.float64).reshape(workload.groups, workload.multiplier, -1, *workload.kernel)
    (sh, sw), (dh, dw), (ho, wo) = workload.stride, workload.dilation, workload.output_size
    y = np.zeros((workload.batch, workload.groups, workload.multiplier, ho * wo))
    for r in range(workload.kernel[0]):
        for s in range(workload.kernel[1]):
            rows = slice(r * dh, r * dh + (ho - 1) * sh + 1, sh)
            columns = slice(s * dw, s * dw + (wo - 1) * sw + 1, sw)
            read = padded[..., rows, columns].reshape(workload.batch, workload.groups, -1, ho * wo)
            y += np.ascontiguousarray(taps[..., r, s]) @ read
    return epilogue_reference(y.reshape(workload.output_shape), workload, scale, shift, residual)
