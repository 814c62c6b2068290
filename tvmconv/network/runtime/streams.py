"""The order of networks on a GPU whose callers have several streams.

A network's intermediate tensors are in the same memory in all calls, and TVM's pool, from which outputs come, gives
memory to the next call as soon as nobody holds it any more, even if another stream is still to read it. Kernels of two
calls must therefore not run at once.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tvm.runtime import Device


@dataclass
class _Turn:
    """The turns of calls on one GPU."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    stream: int | None = None
    """The stream of the last call; None before the first."""


_turns: dict[int, _Turn] = {}
"""The turns on each GPU, by its index."""


def _turn_of(index: int) -> _Turn:
    """Return the turns on a GPU, the same ones for threads that ask first at once: `setdefault` is atomic."""
    return _turns.get(index) or _turns.setdefault(index, _Turn())


@contextmanager
def in_turn(device: Device, stream: int, of_torch: bool, in_capture: bool) -> Iterator[None]:
    """Launch a call's kernels in a stream: they start when the last call's stream has finished all work before.

    Where the stream is torch's current one, that stream waits, else this thread does. A call that is captured runs
    nothing now, and waits for nothing.
    """
    turn = _turn_of(int(device.index))
    with turn.lock:
        if not in_capture:
            if turn.stream is not None and turn.stream != stream:
                _wait(device, turn.stream, of_torch)
            turn.stream = stream
        yield


def _wait(device: Device, other: int, of_torch: bool) -> None:
    """Have torch's current stream, or this thread, wait for all work that another stream has so far."""
    if not of_torch:
        device.sync(other)
        return
    cuda, index = sys.modules["torch"].cuda, int(device.index)
    before = cuda.ExternalStream(other, device=index) if other else cuda.default_stream(index)
    cuda.current_stream(index).wait_stream(before)
