"""Random search."""

from __future__ import annotations

from typing import Any

from .tuner import Tuner


class RandomTuner(Tuner):
    """Tries configurations in random order."""

    def next_batch(self, size: int) -> list[Any]:
        return self.sample(size)
