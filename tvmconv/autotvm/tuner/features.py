"""The cost model's input: the knobs of a configuration, and numbers that the template derives from them, if any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tvmconv.dispatch.task import Task

Matrix = NDArray[np.float32]


def matrix(task: Task, configs: Sequence[Any]) -> Matrix:
    """Return a matrix with a row for each configuration: log2(1 + value) of each of its knobs and features."""
    return np.log2(1 + np.array([task.features(config) for config in configs], np.float32))
