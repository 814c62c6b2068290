"""What Ctrl-C does."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

SHOW_CURSOR = b"\x1b[?25h"
"""A terminal whose cursor a display has hidden shows it again."""


@contextmanager
def interrupts(first: Callable[[], object]) -> Iterator[list[int]]:
    """The Ctrl-C of the block so far: the first of them calls `first`, the second ends the process at once."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if seen:
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)
        seen.append(number)
        first()

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, before)


def raise_interrupt() -> None:
    """What Ctrl-C does unless a command says otherwise."""
    raise KeyboardInterrupt
