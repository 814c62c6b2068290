"""Search of the space in its order, or in random order."""

from __future__ import annotations

from itertools import islice
from typing import Any

from .tuner import Tuner


class GridSearchTuner(Tuner):
    """Tries configurations in the order of the space."""

    def next_batch(self, size: int) -> list[Any]:
        return list(islice(self.unmeasured, size))


class RandomTuner(Tuner):
    """Tries configurations in random order."""

    def next_batch(self, size: int) -> list[Any]:
        return self.sample(size)
