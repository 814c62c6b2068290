"""Handling of Ctrl-C."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""

SHOW_CURSOR = b"\x1b[?25h"
"""The escape sequence that shows a terminal's cursor, which a display may have hidden."""


@contextmanager
def interrupts(first: Callable[[], object]) -> Iterator[list[int]]:
    """Collect the Ctrl-Cs of the block: the first calls `first`, the second ends the process at once."""
    seen: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        if seen:
            if os.isatty(2):
                os.write(2, SHOW_CURSOR)
            os._exit(INTERRUPTED)
        seen.append(number)
        first()

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGINT, previous)


def raise_interrupt() -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does unless a command says otherwise."""
    raise KeyboardInterrupt
