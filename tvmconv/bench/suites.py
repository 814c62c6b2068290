"""The suites of workloads that kernels are measured on."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

from ..errors import InvalidArgumentError
from ..workload import ConvWorkload


def suite_names() -> list[str]:
    """The suites that `load_suite` knows."""
    return list(_read())


def load_suite(name: str) -> dict[str, ConvWorkload]:
    """The float32 workloads of a suite by their short names."""
    suites = _read()
    if name not in suites:
        raise InvalidArgumentError("suite", name, f"one of {', '.join(suites)}")
    suite = suites[name]
    rows = [dict(zip(suite["columns"], row, strict=True)) for row in suite["rows"]]
    return {
        row["name"]: ConvWorkload.depthwise(
            (row["batch"], row["in_channels"], row["height"], row["width"]),
            (row["in_channels"], row["channel_multiplier"], row["kernel"], row["kernel"]),
            stride=row["stride"],
            padding=suite["padding"],
        )
        for row in rows
    }


def _read() -> dict[str, Any]:
    return dict(json.loads(files(__package__).joinpath("suites.json").read_text()))
