"""Staging by asynchronous copies to shared memory, which run during the computation, several chunks ahead of it.

Such a copy takes one instruction and no register, where a load and a store take ten with their addresses. Offsets are
immediate operands of the copy: left to compilers they become additions of 64 bits, again for each copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tvm_ffi
from tvm import tirx
from tvm.backend.cuda.op import cuda_func_call
from tvm.ir import Call
from tvm.ir.expr import TensorLoad

from tvmconv.targets.device_code import function, included

from .steps import Always, Products, Staging, Step

SOURCE = included("lowering/folding/copying.cuh")


def copied(stmt: tirx.Stmt) -> tirx.Stmt:
    """Return a hoisted staging statement with a copy instead of its load and store; it writes zero outside the input.

    An element that is padding for every thread remains a store.
    """

    def copy(store: tirx.BufferStore) -> tirx.Stmt:
        inside, load = tirx.const(True, "bool"), store.value
        if isinstance(load, Call):
            inside, load, _ = load.args
        if isinstance(load, tirx.FloatImm):
            return store
        assert isinstance(load, TensorLoad), load
        to, source = store.buffer, load.source
        name = function("copy_word", 4 * int(store.indices[0]), 4 * int(load.indices[0]))
        return tirx.Evaluate(cuda_func_call(name, to.data, source.data, inside, source_code=SOURCE))

    return tvm_ffi.structural_map(stmt, (tirx.BufferStore, copy))


def committed() -> Always:
    """Return the step that ends the group of a chunk's copies."""
    return Always(tirx.Evaluate(cuda_func_call(function("commit_words"), source_code=SOURCE)))


@dataclass(frozen=True)
class Copies:
    """The parameters by which a kernel copies its input."""

    buffers: int
    """The number of chunks that shared memory has room for."""
    chunk: int
    """The number of channels in a chunk."""
    channels: int
    """The total number of channels."""

    def synchronized(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Yield the steps with a wait and a barrier before each chunk's products, and without TVM's barriers.

        One barrier is enough: after it all threads see the chunk, and have finished the chunk before, whose buffer the
        next copies fill.
        """
        elements = 1 + max(step.weight_index for step in steps if isinstance(step, Products))
        taps = elements // self.channels
        started = ready = -1  # the last chunk that copies were started for, and that the threads have waited for
        for step in steps:
            if isinstance(step, Staging) and step.channel // self.chunk > started:
                started = step.channel // self.chunk
                if self.buffers == 1 and started > 0:
                    yield Always(_barrier())
                elif started >= self.buffers:
                    ready = started - self.buffers + 1
                    yield from _ready(started - 1 - ready)
            elif isinstance(step, Products) and step.weight_index // taps // self.chunk > ready:
                ready = step.weight_index // taps // self.chunk
                yield from _ready(started - ready)
            if started < 0 or not (isinstance(step, Always) and _is_barrier(step.stmt)):
                yield step  # TVM's barrier before the first copy stays: it separates the tiles of a block


def _ready(behind: int) -> Iterator[Always]:
    """Yield a wait for all copies except those of the last `behind` chunks, and a barrier."""
    yield Always(tirx.Evaluate(cuda_func_call(function("wait_for_words", behind), source_code=SOURCE)))
    yield Always(_barrier())


def _barrier() -> tirx.Stmt:
    return tirx.Evaluate(tirx.call_intrin("int32", "tirx.tvm_storage_sync", "shared"))


def _is_barrier(stmt: Any) -> bool:
    return (
        isinstance(stmt, tirx.Evaluate) and isinstance(stmt.value, Call) and stmt.value.op.name.endswith("storage_sync")
    )
