"""A peer that unfolds the input into a matrix (im2col) and multiplies it: by cuBLAS on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Operands, Peer
from .pytorch import epilogue, own_padding, padded

if TYPE_CHECKING:
    import tvm


class Im2colGemm(Peer):
    """PyTorch's `unfold` and its matrix product, one for each image and group."""

    name = "im2col-gemm"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        import torch

        def forward(x: Any, w: Any, **vectors: Any) -> Any:
            columns = torch.nn.functional.unfold(
                x, workload.kernel, workload.dilation, own_padding(workload), workload.stride
            )
            y = w @ columns.view(workload.batch, workload.groups, w.shape[2], -1)
            return epilogue(workload, y.view(workload.output_shape), **vectors)

        calls: list[Call] = []
        for operands in (padded(workload, operands) for operands in sets):
            operands["w"] = operands["w"].reshape(workload.groups, workload.multiplier, -1)
            calls.append(partial(forward, **operands))
        return calls
