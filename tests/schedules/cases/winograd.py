"""Convolutions for Winograd on tensor cores, each with a configuration, that a twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

from tests.schedules.cases.tensor import FIRST, LAST, Layouts, layer
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.tensor.winograd import Config


def conv(
    size: tuple[int, int, int, int], outputs: int, layouts: Layouts = LAST, taps: int = 3, **options: Any
) -> Problem:
    """Return a convolution of so many outputs, and so many taps each way, of an image (N, C, H, W)."""
    return layer(size, (outputs, size[1], taps, taps), "float32", layouts, **options)


CASES = {
    "whole-tiles": (conv((2, 64, 8, 12), 64), Config(64, 64, 1, 1, 2, wgmma=True)),
    "odd-sizes": (
        conv((3, 36, 13, 11), 36, shift=True, residual=True, activation="silu"),
        Config(64, 32, 1, 1, 2, wgmma=True),
    ),
    "no-padding-in-tf32": (conv((1, 32, 7, 7), 32, padding=0, precision="tf32"), Config(32, 32, 2, 1, 2)),
    "uneven-padding": (
        conv((1, 40, 6, 30), 24, padding=(2, 0, 1, 3), scale=True),
        Config(32, 16, 1, 1, 3),
    ),
    "one-output": (conv((1, 32, 3, 3), 4, padding=0), Config(16, 16, 1, 1, 2)),
    "one-pixel": (conv((5, 32, 1, 1), 32, activation="relu"), Config(64, 32, 1, 1, 2, wgmma=True)),
    "to-NCHW": (
        conv((2, 32, 9, 12), 40, Layouts("NHWC", "KRSC", "NCHW"), shift=True, residual=True, activation="relu"),
        Config(64, 64, 1, 1, 2, wgmma=True),
    ),
    "odd-sizes-to-NCHW": (conv((3, 32, 7, 9), 24, Layouts("NHWC", "KCRS", "NCHW")), Config(32, 16, 1, 1, 2)),
    "KCRS": (
        conv((1, 48, 10, 9), 40, Layouts("NHWC", "KCRS", "NHWC"), shift=True, activation="relu6"),
        Config(64, 64, 1, 1, 3, wgmma=True),
    ),
    "NCHW": (
        conv((2, 36, 9, 11), 36, FIRST, shift=True, residual=True, activation="relu"),
        Config(64, 32, 1, 1, 2, wgmma=True),
    ),
    "NCHW-of-5x5-to-NHWC": (
        conv((1, 96, 6, 13), 24, Layouts("NCHW", "KRSC", "NHWC"), taps=5, padding=(1, 2, 0, 3)),
        Config(64, 16, 1, 1, 2, wgmma=True),
    ),
    "NCHW-of-one-pixel": (conv((3, 32, 1, 1), 16, FIRST), Config(64, 32, 1, 1, 2, wgmma=True)),
    "5x5": (
        conv((2, 96, 8, 11), 36, taps=5, shift=True, residual=True, activation="relu"),
        Config(64, 32, 1, 1, 2, wgmma=True),
    ),
    "5x5-KCRS-to-NCHW": (
        conv((1, 100, 9, 12), 20, Layouts("NHWC", "KCRS", "NCHW"), taps=5, padding=0),
        Config(64, 16, 1, 1, 2, wgmma=True),
    ),
    "5x5-uneven-padding": (
        conv((3, 96, 3, 5), 24, taps=5, padding=(4, 1, 0, 3), scale=True),
        Config(64, 32, 1, 1, 2, wgmma=True),
    ),
}

TEAMS = {
    "one-team": (
        conv((2, 64, 18, 15), 72, shift=True, activation="relu"),
        Config(128, 64, 2, 1, 3, wgmma=True, teams=1),
    ),
    "two-teams": (
        conv((3, 40, 17, 20), 36, padding=4, residual=True),
        Config(64, 32, 1, 1, 3, wgmma=True, teams=2),
    ),
    "5x5-one-team": (
        conv((3, 96, 20, 16), 72, Layouts("NHWC", "KCRS", "NHWC"), taps=5, padding=0, shift=True),
        Config(128, 64, 2, 1, 3, wgmma=True, teams=1),
    ),
}
"""Convolutions whose products are of warps with roles, which no emulator runs."""
