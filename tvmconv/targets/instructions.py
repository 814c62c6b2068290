"""Rows of the instructions that multiply matrices: on tensor cores, by the architectures that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tvm


class TensorInstruction(NamedTuple):
    """An instruction that multiplies matrices of half precision and adds to sums in float32."""

    name: str
    """Its name in PTX."""
    since: int
    """The oldest architecture that has it, such as 80 for sm_80."""
    until: int | None
    """The newest one; None for an instruction that every later one has."""
    products: int
    """The multiply-adds of half precision that a multiprocessor of the H100 begins in a clock: 989 TFLOP/s are 2048 by
    `wgmma` (data sheet); of `mma` half of them were seen in kernels with the operands on their way."""


TENSOR_INSTRUCTIONS = (
    TensorInstruction("mma", since=80, until=None, products=1024),
    TensorInstruction("wgmma", since=90, until=90, products=2048),
)


def tensor_instructions(target: tvm.target.Target) -> dict[str, TensorInstruction]:
    """Return the rows of the instructions that a CUDA target has, by name."""
    arch = int(str(target.attrs["arch"]).removeprefix("sm_"))
    return {
        row.name: row for row in TENSOR_INSTRUCTIONS if row.since <= arch and (row.until is None or arch <= row.until)
    }
