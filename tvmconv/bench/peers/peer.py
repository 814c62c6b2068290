"""The interface of a peer: another way to compute a convolution, or its limit, to be timed beside tvmconv."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar

from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload

if TYPE_CHECKING:
    import tvm

Operands = dict[str, Any]
"""The operands of a workload by name, without the output: torch tensors on the target's device."""

Call = Callable[[], Any]
"""A function that computes a convolution once and nothing else; it returns a torch tensor on the same device."""


class Peer(ABC):
    """A way to compute convolutions: a library, in one of its modes."""

    name: str
    precision: str = DEFAULT
    """The precision of its results, in tvmconv's words; `unit` says what a library does beside that."""

    takes_integers: ClassVar[bool] = False
    """True if it supports convolutions of integers at all."""

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        """Return the reason why it cannot take part; None where it can."""
        return None

    @abstractmethod
    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        """Return a call for each set of operands; work that needs to be done only once is done before the call.

        Operands have been brought into the layout and the precision that the peer wants. Raises RuntimeError where the
        library fails.
        """

    def computes(self, workload: ConvWorkload) -> ConvWorkload | None:
        """Return the workload that its output is checked against; None where it computes no convolution."""
        return workload

    def unit(self, workload: ConvWorkload) -> float:
        """Return the relative rounding error of operands, and of results between two operations.

        In float32 some bits are left to algorithms such as Winograd's, which sum less exactly.
        """
        return 2.0**-20 if workload.dtype == "float32" else workload.storage.unit


class Function(Peer):
    """A peer that is one function of all sets of operands."""

    @abstractmethod
    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        """Return the function, which takes the operands that `converted` returns, by their names."""

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        """Return the operands in the layout and the precision that the function takes."""
        return operands

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        forward = self.forward(workload, target)
        return [partial(forward, **self.converted(workload, operands)) for operands in sets]


def not_installed(*packages: str) -> str | None:
    """Return an obstacle that says how to get those of some packages that are missing, if any."""
    missing = [package for package in packages if find_spec(package) is None]
    return f"not installed: pip install {' '.join(missing)}" if missing else None
