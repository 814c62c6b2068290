"""A peer for convolutions that are a product of two matrices: PyTorch's product, which is cuBLAS on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from tvmconv.problem.dtypes import QUANTIZED
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from .peer import Call, Operands, Peer
from .pytorch import TEN_BITS, epilogue, padded

if TYPE_CHECKING:
    import tvm

LEAST_INT8_ROWS, INT8_MULTIPLE = 17, 8
"""The least rows, and what the columns of both matrices are multiples of, of PyTorch's product of int8 on a GPU."""


@dataclass(frozen=True)
class Gemm(Peer):
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
            return "for float32 on a GPU"
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

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
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

        def with_tf32(**operands: Any) -> Any:
            torch.backends.cuda.matmul.allow_tf32 = True
            try:
                return forward(**operands)
            finally:
                torch.backends.cuda.matmul.allow_tf32 = False

        calls: list[Call] = []
        for operands in (padded(workload, operands) for operands in sets):
            x = operands["x"]
            operands["x"] = _rows(x) if self.channels_last else x.flatten(2)
            operands["w"] = operands["w"].flatten(1)
            calls.append(partial(with_tf32 if self.tf32 else forward, **operands))
        return calls

    def unit(self, workload: ConvWorkload) -> float:
        return TEN_BITS if self.tf32 else super().unit(workload)


def _rows(x: Any) -> Any:
    """Return the pixels of x, which is NCHW, as a matrix of rows of channels.

    It is a matrix of two dimensions: four of them keep the strides that they had where a plane is one pixel, contiguous
    or not, and `linear` multiplies each row by itself then.
    """
    return x.permute(0, 2, 3, 1).reshape(-1, x.shape[1]).contiguous()
