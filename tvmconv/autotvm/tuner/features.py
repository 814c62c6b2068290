"""What the cost model sees of a configuration: its knobs, and what the template derives from them, if anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...dispatch.task import Task

Matrix = NDArray[np.float32]


def matrix(task: Task, configs: Sequence[Any]) -> Matrix:
    """One row for each configuration, log2(1 + value) of each of its knobs and features."""
    return np.log2(1 + np.array([task.features(config) for config in configs], np.float32))
