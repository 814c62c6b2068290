"""The suites of workloads that kernels are measured on."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload


def suite_names() -> list[str]:
    """Return the names of the suites that `load_suite` knows."""
    return list(_read())


def load_suite(name: str, kind: str, batch: int | None = None, dtype: str = "float32") -> dict[str, ConvWorkload]:
    """Return the workloads of a suite by their short names, with the suite's batch for a kind of target, or another.

    `kind` is "cuda" or "llvm". The share of zeros in a weight is not part of a workload: see `checking.pruning`.
    """
    suites = _read()
    if name not in suites:
        raise InvalidArgumentError("suite", name, f"one of {', '.join(suites)}")
    suite = suites[name]
    rows = ({**suite, **dict(zip(suite["columns"], row, strict=True))} for row in suite["rows"])
    return {row["name"]: _workload(row, batch or _batch(row["batch"], kind), dtype) for row in rows}


def _workload(row: dict[str, Any], batch: int, dtype: str) -> ConvWorkload:
    """Return the workload of a row, which adds values to those that all rows of the suite share."""
    channels, kernel = row["in_channels"], (row["kernel"], row["kernel"])
    x_shape = (batch, channels, row["height"], row["width"])
    how = {"stride": row["stride"], "padding": row["padding"], "dtype": dtype}
    if "channel_multiplier" in row:
        w_shape = (channels, row["channel_multiplier"], *kernel)
        return ConvWorkload.depthwise(x_shape, w_shape, **how)
    groups = row.get("groups", 1)
    return ConvWorkload.conv2d(x_shape, (row["out_channels"], channels // groups, *kernel), groups=groups, **how)


def _batch(batch: int | dict[str, int], kind: str) -> int:
    return batch if isinstance(batch, int) else batch[kind]


def _read() -> dict[str, Any]:
    return dict(json.loads(files(__package__).joinpath("suites.json").read_text()))
