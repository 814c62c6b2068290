"""The rows of the JSON beside this file, which `tvmconv bench` has printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
"""The repository."""

Row = dict[Any, Any]
"""What was measured of a workload or a network, as `tvmconv.bench` describes it."""

OURS = "tvmconv"
COPY = ("copy", "copy-kernel")
"""The two ways to copy as many bytes as a convolution has to read and write."""
BETTER = ("pytorch", "pytorch-channels-last")
"""PyTorch's layouts."""


def read(files: str) -> list[Row]:
    """The rows of a file, or of several that are joined by "+"."""
    return [row for file in files.split("+") for row in json.loads((ROOT / file).read_text())["rows"]]


def ran(row: Row, *contenders: str) -> bool:
    """Whether one of the contenders has run."""
    return any(name in row["times"] for name in contenders)


def median(row: Row, *contenders: str) -> float:
    """Seconds of the fastest of the contenders that have run, of which there must be one."""
    return min(float(row["times"][name]["median"]) for name in contenders if name in row["times"])
