"""A lower limit on time: a convolution cannot be faster than a copy of the bytes that it has to read and write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Operands, Peer

if TYPE_CHECKING:
    import tvm

LINE = 512
"""The number of bytes that each half is rounded up to a multiple of."""


@dataclass(frozen=True)
class Copy(Peer):
    """A copy that reads half of `workload.bytes_moved` and writes the other half."""

    takes_integers = True
    name: str
    by_kernel: bool
    """True for an elementwise kernel instead of the device's own copy, which is slow for some sizes."""

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        return [self.call(workload.bytes_moved, operands["x"].device) for operands in sets]

    def call(self, nbytes: int, device: Any) -> Call:
        """Return a copy that moves a number of bytes."""
        import torch

        source = torch.randn(-(-nbytes // 2 // LINE) * LINE // 4, device=device)
        target = torch.empty_like(source)
        return partial(torch.mul, source, 1.0, out=target) if self.by_kernel else partial(target.copy_, source)

    def computes(self, workload: ConvWorkload) -> None:
        return None
