"""Arrays of more bytes than tests should read, or a machine may have."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def huge(folder: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return an array of float32 that no call has to copy: it lies in a file of nothing but a length."""
    return np.memmap(folder / "huge", "float32", "w+", shape=shape)
