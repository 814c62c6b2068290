"""What a peer is: something else that computes a convolution, or the limit of it, to be timed beside tvmconv."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ...workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

Operands = dict[str, Any]
"""The operands of a workload by name but for the output: torch tensors on the target's device."""

Call = Callable[[], Any]
"""Computes a convolution once, and nothing else: returns the output as a torch tensor on the same device."""


class Peer(ABC):
    """One way to compute convolutions."""

    name: str

    @abstractmethod
    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        """Why it cannot take part; None where it can."""

    @abstractmethod
    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        """A call for each set of operands; whatever needs to be done only once has been done before the call.

        Operands have been brought into the layout and the precision that the peer wants. Raises RuntimeError where the
        library fails.
        """

    def computes(self, workload: ConvWorkload) -> ConvWorkload | None:
        """What its output is checked against; None where it computes no convolution."""
        return workload

    def unit(self, workload: ConvWorkload) -> float:
        """What operands and the results between two operations are rounded to, as a share of their size.

        In float32 some bits are left to algorithms such as Winograd's, which sum less exactly.
        """
        return 2.0**-20 if workload.dtype == "float32" else workload.storage.unit
