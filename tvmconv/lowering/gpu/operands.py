"""The operands of CUDA functions in a scheduled function: memory of which they get the address."""

from __future__ import annotations

from tvm import tirx
from tvm.ir.expr import TensorRegion
from tvm.s_tir.stmt import MatchBufferRegion


class Operand:
    """A region of shared memory or registers that a function reads or writes, which gets the address of its start.

    ThreadSync does not look at the access, as a ring has barriers of its own, unless it is "w": a write that it puts
    barriers around.
    """

    def __init__(self, region: TensorRegion, access: str | int = 0) -> None:
        whole = region.source
        extents = [each.extent for each in region.region]
        part = tirx.decl_buffer(extents, whole.ty.dtype, f"{whole.name}_part", scope=whole.scope(), offset_factor=1)
        self.match = MatchBufferRegion(part, region)
        self.pointer = part.access_ptr(access)
