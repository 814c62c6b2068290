"""Peers that are PyTorch's product of two matrices, cuBLAS or cuSPARSE on a GPU: of x itself, or of x unfolded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Function, Operands
from .pytorch import FLOAT32_ON_GPU, TEN_BITS, epilogue, own_padding, padded, with_tf32

if TYPE_CHECKING:
    import tvm

LEAST_INT8_ROWS, INT8_MULTIPLE = 17, 8
"""The least rows, and what the columns of both matrices are multiples of, of PyTorch's product of int8 on a GPU."""


@dataclass(frozen=True)
class Gemm(Function):
    """PyTorch's product of the weight and the pixels of 1x1 convolutions: one for each image, or a linear layer."""

    name: str = "gemm"
    channels_last: bool = False
    """True for a linear layer, whose pixels are rows of channels."""
    tf32: bool = False

    takes_integers: ClassVar[bool] = True

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        in_place = workload.kernel == workload.stride == (1, 1) and not any(workload.padding)
        if workload.groups > 1 or not in_place:
            return "for 1x1 convolutions of one group with a stride of 1"
        if self.tf32 and (not backend_of(target).on_gpu or workload.dtype != "float32"):
            return FLOAT32_ON_GPU
        if not self.channels_last and prod(workload.output_size) == 1:
            return "a pixel is a row of channels, as for gemm-channels-last"
        return self._integer_obstacle(workload) if workload.dtype in QUANTIZED else None

    def _integer_obstacle(self, workload: ConvWorkload) -> str | None:
        """Return what PyTorch's product of int8, which stores its sums, does not take."""
        rows, sizes = workload.batch * prod(workload.output_size), (workload.in_channels, workload.out_channels)
        if not self.channels_last or (workload.dtype, workload.out_dtype) != ("int8", "int32"):
            return "for rows of int8 channels, to int32"
        if workload.zero_point or workload.epilogue != Epilogue():
            return "for sums without a zero point and an epilogue"
        if rows < LEAST_INT8_ROWS or any(size % INT8_MULTIPLE for size in sizes):
            return f"for {LEAST_INT8_ROWS} rows of int8 and more, and channels in multiples of {INT8_MULTIPLE}"
        return None

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import torch

        batch, (height, width) = workload.batch, workload.output_size

        def of_integers(x: Any, w: Any) -> Any:
            return torch._int_mm(x, w.t())

        linear = of_integers if workload.dtype in QUANTIZED else torch.nn.functional.linear

        def forward(x: Any, w: Any, **others: Any) -> Any:
            if not self.channels_last:
                return epilogue(workload, (w @ x).view(workload.output_shape), **others)
            y = linear(x, w).view(batch, height, width, -1).permute(0, 3, 1, 2)
            return epilogue(workload, y, **others)

        return with_tf32(forward) if self.tf32 else forward

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        operands = padded(workload, operands)
        x = operands["x"]
        return {**operands, "x": _rows(x) if self.channels_last else x.flatten(2), "w": operands["w"].flatten(1)}

    def unit(self, workload: ConvWorkload) -> float:
        return TEN_BITS if self.tf32 else super().unit(workload)


def _rows(x: Any) -> Any:
    """Return the pixels of x, which is NCHW, as a matrix of rows of channels.

    The matrix has two dimensions: with four, the strides of a plane of one pixel would stay, contiguous or not, and
    `linear` would multiply each row separately.
    """
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()


class Im2colGemm(Function):
    """PyTorch's `unfold` and its matrix product, with a product for each image and group."""

    name = "im2col-gemm"

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import torch

        def forward(x: Any, w: Any, **vectors: Any) -> Any:
            columns = torch.nn.functional.unfold(
                x, workload.kernel, workload.dilation, own_padding(workload), workload.stride
            )
            y = w @ columns.view(workload.batch, workload.groups, w.shape[2], -1)
            return epilogue(workload, y.view(workload.output_shape), **vectors)

        return forward

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        w = operands["w"].reshape(workload.groups, workload.multiplier, -1)
        return {**padded(workload, operands), "w": w}


class Im2colSpmm(Function):
    """A peer that unfolds the input into one matrix and multiplies it by a sparse one: cuSPARSE on a GPU.

    The matrix is written once, with all images side by side; the result is left in the layout (K, N, Ho, Wo).
    """

    name = "im2col-spmm"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None if workload.groups == 1 and workload.dtype == "float32" else "for float32 without groups"

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        import torch

        (r, s), (sh, sw), (dh, dw) = workload.kernel, workload.stride, workload.dilation
        rows, columns = workload.output_size
        top, left, bottom, right = workload.padding

        def forward(x: Any, w: Any, **others: Any) -> Any:
            x = torch.nn.functional.pad(x, (left, right, top, bottom)) if any(workload.padding) else x
            n, c, h, width = x.stride()
            size = (workload.in_channels, r, s, workload.batch, rows, columns)
            strides = (c, h * dh, width * dw, n, h * sh, width * sw)
            unfolded = x.as_strided(size, strides).reshape(w.shape[1], -1)
            y = torch.sparse.mm(w, unfolded).view(-1, workload.batch, rows, columns)
            return epilogue(workload, y.transpose(0, 1), **others)

        return forward

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        matrix = operands["w"].reshape(workload.out_channels, -1).to_sparse_csr()
        return {**padded(workload, operands), "x": operands["x"], "w": matrix}
