"""The float64 reference of a convolution with any number of groups.

Of integers it is exact: sums stay below 2^31, and float64 holds each integer below 2^53.
"""

from __future__ import annotations

import numpy as np

from tvmconv.problem.layout import Layout
from tvmconv.problem.workload import ConvWorkload

from .epilogue import epilogue_reference


def conv2d_reference(
    workload: ConvWorkload,
    x: np.ndarray,
    w: np.ndarray,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Compute the convolution in float64 NumPy: for each tap of the kernel a matrix product of each group's channels.

    x is (N, C, H, W), w is `workload.w_shape`, scale and shift are (K,); residual and the result, in
    float64 and not rounded to the output's type, are (N, K, Ho, Wo); all of these in the workload's layouts.
    """
    return with_epilogue(workload, sums_of_products(workload, x, w), scale, shift, residual)


def sums_of_products(workload: ConvWorkload, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the sums (N, K, Ho, Wo) of x and w in the workload's layouts, without its epilogue."""
    x, w = to_logical(x, workload.x_layout), to_logical(w, workload.weight_layout)
    top, left, bottom, right = workload.padding
    images, groups = workload.batch, workload.groups
    # Positions of all images are columns of one product for each tap: images of one position each would be slow alone.
    by_channel = x.swapaxes(0, 1).astype(np.float64) - workload.zero_point
    padded = np.pad(by_channel, ((0, 0), (0, 0), (top, bottom), (left, right)))
    taps = w.astype(np.float64).reshape(groups, workload.multiplier, -1, *workload.kernel)
    (sh, sw), (dh, dw), (ho, wo) = workload.stride, workload.dilation, workload.output_size
    y = np.zeros((groups, workload.multiplier, images * ho * wo))
    for r in range(workload.kernel[0]):
        for s in range(workload.kernel[1]):
            rows = slice(r * dh, r * dh + (ho - 1) * sh + 1, sh)
            columns = slice(s * dw, s * dw + (wo - 1) * sw + 1, sw)
            y += np.ascontiguousarray(taps[..., r, s]) @ padded[..., rows, columns].reshape(groups, -1, y.shape[2])
    return np.ascontiguousarray(y.reshape(-1, images, ho, wo).swapaxes(0, 1))


def with_epilogue(
    workload: ConvWorkload,
    sums: np.ndarray,
    scale: np.ndarray | None = None,
    shift: np.ndarray | None = None,
    residual: np.ndarray | None = None,
) -> np.ndarray:
    """Return the output, in the workload's layout, of sums (N, K, Ho, Wo): float64, not rounded to its type."""
    residual = None if residual is None else to_logical(residual, workload.output_layout)
    return from_logical(epilogue_reference(sums, workload, scale, shift, residual), workload.output_layout)


def to_logical(array: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a tensor in a layout as (N, C, H, W), or a weight as (K, C / groups, R, S)."""
    if layout.block == 1:
        return np.ascontiguousarray(array.transpose(np.argsort(layout.order)))
    n, blocks, h, w, block = array.shape
    return np.ascontiguousarray(array.transpose(0, 1, 4, 2, 3)).reshape(n, blocks * block, h, w)


def from_logical(array: np.ndarray, layout: Layout) -> np.ndarray:
    """Return a tensor (N, C, H, W), or a weight (K, C / groups, R, S), in a layout."""
    if layout.block == 1:
        return np.ascontiguousarray(array.transpose(layout.order))
    n, _, h, w = array.shape
    return np.ascontiguousarray(array.reshape(n, -1, layout.block, h, w).transpose(0, 1, 3, 4, 2))
