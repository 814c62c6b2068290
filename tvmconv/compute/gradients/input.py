"""The gradient of a depthwise convolution with respect to its input: a transposed convolution of the output's gradient.

`dX[n, c, h, w] = sum over q, r, s of dY[n, c*M + q, y, x] * F[c, q, r, s]` where `y*sh + r*dh == h + top` and
`x*sw + s*dw == w + left`. Rows with the same remainder modulo the stride are a phase: they read the same taps.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from tvm import te, tirx

from tvmconv.problem.workload import ConvWorkload


@dataclass(frozen=True)
class Phases:
    """The phases of the rows, or of the columns, of an input: row `i * stride + p` is number i of phase p.

    A phase reads every `step`-th tap from its first one on, and each further one of these taps is multiplied with a row
    of the output that is `rise` rows further up. Phases and numbers may be expressions of TVM.
    """

    kernel: int
    stride: int
    dilation: int
    padding: int
    """The padding above, or to the left."""

    @property
    def common(self) -> int:
        """The greatest common divisor of stride and dilation: rows read nothing unless it divides phase + padding."""
        return gcd(self.stride, self.dilation)

    @property
    def step(self) -> int:
        return self.stride // self.common

    @property
    def rise(self) -> int:
        return self.dilation // self.common

    @property
    def taps(self) -> int:
        """The largest number of taps that a phase reads."""
        return -(-self.kernel // self.step)

    def tap(self, phase: Any, number: Any) -> Any:
        """Return the index in the kernel of a phase's tap; `number` counts the taps that the phase reads."""
        inverse = pow(self.rise, -1, self.step)
        return (phase + self.padding) // self.common * inverse % self.step + number * self.step

    def offset(self, phase: Any, number: Any) -> Any:
        """Return the row of the output that a tap is multiplied with, less the number of the input row in its phase."""
        return (phase + self.padding - self.tap(phase, 0) * self.dilation) // self.stride - number * self.rise

    def reads(self, phase: Any, number: Any) -> Any:
        """Return the condition that a phase has a tap with this number."""
        return tirx.all((phase + self.padding) % self.common == 0, self.tap(phase, number) < self.kernel)

    @property
    def offsets(self) -> tuple[int, int]:
        """The smallest and the largest offset of all phases and taps."""
        offsets = [
            self.offset(phase, number)
            for phase in range(self.stride)
            for number in range(self.taps)
            if (phase + self.padding) % self.common == 0 and self.tap(phase, number) < self.kernel
        ]
        return min(offsets), max(offsets)

    def window(self, tile: int) -> int:
        """Return the number of output rows that `tile` neighbouring rows of all phases read."""
        low, high = self.offsets
        return tile + high - low


def phases(workload: ConvWorkload) -> tuple[Phases, Phases]:
    """Return the phases of rows and of columns."""
    axes = zip(workload.kernel, workload.stride, workload.dilation, workload.padding[:2], strict=True)
    rows, columns = (Phases(*axis) for axis in axes)
    return rows, columns


def phase_sizes(workload: ConvWorkload) -> tuple[int, int]:
    """Return the number of rows and of columns of the input in its longest phase."""
    (height, width), (sh, sw) = (workload.height, workload.width), workload.stride
    return -(-height // sh), -(-width // sw)


def window_shape(workload: ConvWorkload, tile: tuple[int, int], lanes: int = 1) -> tuple[int, int]:
    """Return the number of output rows that a tile reads, and of aligned vectors of `lanes` over its columns."""
    (rows, columns), (ti, tj) = phases(workload), tile
    return rows.window(ti), -(-(columns.offsets[0] % lanes + columns.window(tj)) // lanes)


def input_gradient(workload: ConvWorkload, tile: tuple[int, int], lanes: int = 1) -> list[te.Tensor]:
    """Return the TE definition, in the stages "window", "sums" and "output".

    Returns dy (N, K, Ho, Wo), w (C, M, R, S) and the gradient (N, C, H, W), all in the workload's type, and dy, the
    gradient and the last stage in its layouts. `tile` is the rows and columns of each phase in a tile, whose window has
    all elements of dy that it reads, with zeros around dy. Products are summed in float32. `lanes` puts the columns of
    windows of dy in NCHW into vectors, one more axis; it has to divide the columns of dy and of a tile.
    """
    dy = te.placeholder(workload.operands["output"][0], workload.dtype, name="dy")
    w = te.placeholder(workload.w_shape, workload.dtype, name="w")
    (rows, columns), (sh, sw), m = phases(workload), workload.stride, workload.multiplier
    (ti, tj), (ho, wo), sizes = tile, workload.output_size, phase_sizes(workload)
    tiles = tuple(-(-size // step) for size, step in zip(sizes, tile, strict=True))
    zero = tirx.const(0, "float32")
    start = columns.offsets[0] // lanes

    def element(*of_window: Any) -> tirx.PrimExpr:
        n, k, it, jt, a, b, *lane = of_window
        y, vector = it * ti + a + rows.offsets[0], jt * (tj // lanes) + b + start
        inside = tirx.all(y >= 0, y < ho, vector >= 0, vector < wo // lanes)
        index = workload.output_layout.memory_index(n, k, y, vector * lanes + sum(lane))
        return tirx.if_then_else(inside, dy[index].astype("float32"), zero)

    shape = (workload.batch, workload.out_channels, *tiles, *window_shape(workload, tile, lanes))
    window = te.compute((*shape, lanes) if lanes > 1 else shape, element, name="window")
    q = te.reduce_axis((0, m), name="q")
    r, s = te.reduce_axis((0, rows.taps), name="r"), te.reduce_axis((0, columns.taps), name="s")

    def product(n: Any, c: Any, it: Any, jt: Any, i: Any, p: Any, j: Any, o: Any) -> tirx.PrimExpr:
        a, b = i + rows.offset(p, r) - rows.offsets[0], j + columns.offset(o, s) - start * lanes
        tap = w[c, q, rows.tap(p, r), columns.tap(o, s)].astype("float32")
        reads = tirx.all(rows.reads(p, r), columns.reads(o, s))
        column = (b // lanes, b % lanes) if lanes > 1 else (b,)
        index = (n, c * m + q, it, jt, a, *column)
        return te.sum(tirx.if_then_else(reads, window[index] * tap, zero), axis=[q, r, s])

    shape = (workload.batch, workload.in_channels, *tiles, ti, sh, tj, sw)
    sums = te.compute(shape, product, name="sums")

    def stored(*index: Any) -> tirx.PrimExpr:
        n, c, h, v = workload.x_layout.logical(*index)
        i, j = h // sh, v // sw
        return sums[n, c, i // ti, j // tj, i % ti, h % sh, j % tj, v % sw].astype(workload.dtype)

    return [dy, w, te.compute(workload.operands["x"][0], stored, name="output")]


def input_gradient_reference(workload: ConvWorkload, dy: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the gradient (N, C, H, W) in float64 NumPy, tap by tap."""
    (top, left, _, _), (sh, sw), (dh, dw) = workload.padding, workload.stride, workload.dilation
    (n, c, height, width), (ho, wo) = workload.x_shape, workload.output_size
    padded = np.zeros((n, c, *workload.padded_input))
    grouped = dy.astype(np.float64).reshape(n, c, workload.multiplier, ho, wo)
    for r in range(workload.kernel[0]):
        for s in range(workload.kernel[1]):
            rows = slice(r * dh, r * dh + (ho - 1) * sh + 1, sh)
            columns = slice(s * dw, s * dw + (wo - 1) * sw + 1, sw)
            padded[..., rows, columns] += np.einsum("ncqyx,cq->ncyx", grouped, w[..., r, s].astype(np.float64))
    return padded[..., top : top + height, left : left + width]
