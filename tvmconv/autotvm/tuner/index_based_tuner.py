"""Search of the space in its order, or in random order."""

from __future__ import annotations

from itertools import islice
from typing import Any

from .tuner import Tuner


class GridSearchTuner(Tuner):
    """Tries configurations in the order of the space.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> autotvm.GridSearchTuner(task).next_batch(3) == list(task.space.configs[:3])
    True
    """

    def next_batch(self, size: int) -> list[Any]:
        return list(islice(self.unmeasured, size))


class RandomTuner(Tuner):
    """Tries configurations in random order.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> autotvm.RandomTuner(task, seed=1).next_batch(3) == autotvm.RandomTuner(task, seed=1).next_batch(3)
    True
    """

    def next_batch(self, size: int) -> list[Any]:
        return self.sample(size)
