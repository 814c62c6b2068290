"""Contenders where much of the weight is zero: tvmconv's sparse kernels, and other ways to deal with zeros."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from tvmconv.problem.workload import ConvWorkload

from .ours import Tvmconv
from .peer import Call, Operands, Peer
from .pytorch import PyTorch, epilogue, padded

if TYPE_CHECKING:
    import tvm

    from tvmconv.runtime.sparse.operator import SparseOperator


class Sparse(Tvmconv):
    """tvmconv with the weight compiled in; it takes the place of tvmconv's dense kernel."""

    operator: SparseOperator
    """The operator that was prepared last."""

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from tvmconv.runtime.sparse.convolution import sparse_conv2d

        w = sets[0]["w"].reshape(workload.out_channels, -1, *workload.kernel)
        made = sparse_conv2d(
            w,
            workload.stride,
            workload.padding,
            workload.dilation,
            workload.groups,
            sets[0].get("scale"),
            sets[0].get("shift"),
            workload.epilogue.residual,
            (workload.epilogue.row.name, *workload.epilogue.parameters),
            target=target,
        )
        self.operator = made.operator(workload.x_shape, workload.dtype)
        return [partial(self.operator, operands["x"], operands.get("residual")) for operands in sets]


class Dense(Tvmconv):
    """tvmconv's dense kernel, which multiplies by zeros as by any number."""

    name = "tvmconv-dense"


class Im2colSpmm(Peer):
    """A peer that unfolds the input into one matrix and multiplies it by a sparse one: cuSPARSE on a GPU.

    The matrix is written once, with all images side by side; the result is left in the layout (K, N, Ho, Wo).
    """

    name = "im2col-spmm"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None if workload.groups == 1 and workload.dtype == "float32" else "for float32 without groups"

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        import torch

        (r, s), (sh, sw), (dh, dw) = workload.kernel, workload.stride, workload.dilation
        rows, columns = workload.output_size
        top, left, bottom, right = workload.padding

        def forward(x: Any, matrix: Any, **others: Any) -> Any:
            x = torch.nn.functional.pad(x, (left, right, top, bottom)) if any(workload.padding) else x
            n, c, h, w = x.stride()
            size = (workload.in_channels, r, s, workload.batch, rows, columns)
            unfolded = x.as_strided(size, (c, h * dh, w * dw, n, h * sh, w * sw)).reshape(matrix.shape[1], -1)
            y = torch.sparse.mm(matrix, unfolded).view(-1, workload.batch, rows, columns)
            return epilogue(workload, y.transpose(0, 1), **others)

        calls: list[Call] = []
        for operands in sets:
            matrix = operands["w"].reshape(workload.out_channels, -1).to_sparse_csr()
            others = {name: tensor for name, tensor in padded(workload, operands).items() if name not in ("x", "w")}
            calls.append(partial(forward, operands["x"], matrix, **others))
        return calls


@dataclass(frozen=True)
class Structured(PyTorch):
    """PyTorch with half of the input channels, of the filters, or of both gone: a dense convolution, only smaller."""

    channels: bool = False
    filters: bool = False

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if workload.groups > 1 or (self.channels and workload.in_channels % 2) or workload.out_channels % 2:
            return "for channels that can be halved"
        return super().obstacle(workload, target)

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        smaller = self.computes(workload)
        halves = [
            {
                name: operands[name][tuple(map(slice, shape))].contiguous()
                for name, (shape, _) in smaller.operands.items()
                if name in operands
            }
            for operands in sets
        ]
        return super().prepare(smaller, target, halves)

    def computes(self, workload: ConvWorkload) -> ConvWorkload:
        in_channels = workload.in_channels // (2 if self.channels else 1)
        out_channels = workload.out_channels // (2 if self.filters else 1)
        return msgspec.structs.replace(workload, in_channels=in_channels, out_channels=out_channels)
