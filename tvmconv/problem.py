"""The problem that a kernel solves: the key of records, and the argument of every template."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .workload import ConvWorkload


class Problem(NamedTuple):
    """A workload and the sparsity of its weight; one configuration is the best for each problem."""

    workload: ConvWorkload
    sparsity: float | None = None
    """The share of zeros in the weight, which is compiled in; None for a dense kernel, which has it as an operand."""
    precision: str = "float32"

    @property
    def density(self) -> float:
        """The share of non-zeros in the weight; 1 for a dense kernel, which takes every weight as one."""
        return 1.0 if self.sparsity is None else 1 - self.sparsity

    @property
    def is_depthwise(self) -> bool:
        """True if the weight is an operand, and each output channel reads one input channel."""
        return self.sparsity is None and self.workload.is_depthwise

    @property
    def is_dense(self) -> bool:
        """True if the weight is an operand, and output channels read several input channels."""
        return self.sparsity is None and not self.workload.is_depthwise

    def __str__(self) -> str:
        return str(self.workload) if self.sparsity is None else f"{self.workload}, {100 * self.sparsity:g}% zeros"

    def to_json(self) -> str:
        """Return one line of JSON, for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Return the problem that `to_json` wrote."""
        return msgspec.json.decode(text, type=cls)
