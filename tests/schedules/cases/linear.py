"""Linear layers of several rows, each with a configuration, that its serial twin and a GPU have to get right."""

from __future__ import annotations

from tests.schedules.cases.matvec import EPILOGUE, last, rows
from tvmconv.schedules.cuda.tensor.linear import Config

CASES = {
    "float32": (rows(36, 96, 72, "float32", shift=True, activation="relu"), Config(64, 32, 1, 1, 2, wgmma=True)),
    "tf32": (rows(36, 100, 136, "float32", precision="tf32"), Config(64, 32, 1, 1, 3, wgmma=True)),
    "epilogue": (rows(52, 128, 72, "float32", **EPILOGUE), Config(64, 32, 1, 1, 2, wgmma=True, split_k=2)),
    "cluster": (
        rows(40, 160, 64, "float32", precision="tf32", scale=True, shift=True),
        Config(64, 64, 1, 1, 2, wgmma=True, split_k=2, in_cluster=True),
    ),
    "bfloat16": (rows(12, 80, 50, "bfloat16", **EPILOGUE), Config(64, 16, 1, 1, 3, wgmma=True)),
    "stride": (rows(24, 64, 40, stride=2), Config(64, 32, 1, 1, 3, wgmma=True)),
    "channels-last": (last(rows(24, 64, 40, shift=True)), Config(64, 32, 1, 1, 3, wgmma=True)),
    "to-float32": (rows(8, 72, 30, out_dtype="float32", shift=True), Config(64, 16, 1, 1, 3, wgmma=True, split_k=2)),
}

TEAMS = {
    "teams": (
        rows(64, 256, 140, "float32", precision="tf32", shift=True, activation="relu"),
        Config(64, 64, 1, 1, 4, wgmma=True, teams=2),
    ),
    "teams-half": (rows(60, 192, 200, **EPILOGUE), Config(64, 64, 1, 1, 4, wgmma=True, teams=2)),
}
"""Layers whose warps have roles, which no emulator runs."""
