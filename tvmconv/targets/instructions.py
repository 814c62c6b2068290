"""Rows of the instructions that multiply matrices: on tensor cores, by the architectures that have them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tvm


class TensorInstruction(NamedTuple):
    """An instruction that multiplies matrices: of half precision or TF32 with sums in float32, of int8 in int32."""

    name: str
    """Its name in PTX."""
    since: int
    """The oldest architecture that the row stands for, such as 80 for sm_80."""
    until: int | None
    """The newest one; None for a row that stands for every later one."""
    products: int
    """The multiply-adds of half precision that a multiprocessor begins in a clock.

    Of TF32 they are half as many, and of integers of one byte twice as many.

    On an H100 989 TFLOP/s are 2048 by `wgmma` (data sheet); of `mma` half of them were seen in kernels. The others are
    from data sheets, by the rates with sums in float32: 312 TFLOP/s of an A100, 71 of an RTX 3090 and 165 of an RTX
    4090.
    """


TENSOR_INSTRUCTIONS = (
    TensorInstruction("mma", since=80, until=85, products=1024),
    TensorInstruction("mma", since=86, until=89, products=256),
    TensorInstruction("mma", since=90, until=119, products=1024),
    TensorInstruction("mma", since=120, until=None, products=256),
    TensorInstruction("wgmma", since=90, until=90, products=2048),
)


def tensor_instructions(target: tvm.target.Target) -> dict[str, TensorInstruction]:
    """Return the rows of the instructions that a CUDA target has, by name."""
    arch = int(str(target.attrs["arch"]).removeprefix("sm_"))
    return {
        row.name: row for row in TENSOR_INSTRUCTIONS if row.since <= arch and (row.until is None or arch <= row.until)
    }
