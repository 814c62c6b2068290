"""The JSON files beside this one, as the tables and the picture of the documentation read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
"""The folder of the repository."""

Row = dict[str, Any]
"""The results for a workload or a network, as `tvmconv.bench` describes them."""

OURS = ("tvmconv", "tvmconv-channels-last")
"""The names of tvmconv in PyTorch's two layouts."""


def read(file: str) -> dict[str, Any]:
    """Return the document of a file, by its name without folder and ending."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / f"{file}.json").read_text())
    return found


def statistic(document: dict[str, Any]) -> str:
    """Return the statistic that counts: the median of rounds on a GPU, the fastest round on a CPU, which is shared."""
    return "median" if "NVIDIA" in str(document["device"]) else "low"


def seconds(row: Row, contenders: Sequence[str], statistic: str) -> float | None:
    """Return the seconds of the fastest of the contenders that have run; None if none has."""
    return min((float(row["times"][name][statistic]) for name in contenders if name in row["times"]), default=None)


def ratio(row: Row, peers: Sequence[str], statistic: str, ours: Sequence[str] = OURS) -> float | None:
    """Return how many times as long as tvmconv the fastest of the peers takes; None unless both have run."""
    times = seconds(row, peers, statistic), seconds(row, ours, statistic)
    return None if times[0] is None or times[1] is None else times[0] / times[1]
