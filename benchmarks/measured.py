"""The rows of the JSON files beside this one, which `tvmconv bench` has printed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
"""The folder of the repository."""

Row = dict[Any, Any]
"""The results for a workload or a network, as `tvmconv.bench` describes them."""

OURS = "tvmconv"
OUR_LAYOUTS = ("tvmconv", "tvmconv-channels-last")
"""The names of tvmconv in PyTorch's two layouts."""
COPY = ("copy", "copy-kernel")
"""The names of two ways to copy as many bytes as a convolution has to read and write."""
BETTER = ("pytorch", "pytorch-channels-last")
"""The names of PyTorch in its two layouts."""


def read(files: str) -> list[Row]:
    """Return the rows of a file, or of several that are joined by "+"."""
    return [row for file in files.split("+") for row in json.loads((ROOT / file).read_text())["rows"]]


def ran(row: Row, *contenders: str) -> bool:
    """Return whether one of the contenders has run."""
    return any(name in row["times"] for name in contenders)


def median(row: Row, *contenders: str) -> float:
    """Return the seconds of the fastest of the contenders that have run, of which there must be one."""
    return min(float(row["times"][name]["median"]) for name in contenders if name in row["times"])
