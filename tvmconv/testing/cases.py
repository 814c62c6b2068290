"""Convolutions that every schedule has to get right: small, odd and awkward ones."""

from __future__ import annotations

from dataclasses import dataclass

from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.workload import ConvWorkload


@dataclass(frozen=True)
class Case:
    """A workload with a name for test reports."""

    id: str
    workload: ConvWorkload


def _case(case_id: str, x: tuple[int, ...], w: tuple[int, ...], **options: object) -> Case:
    return Case(case_id, ConvWorkload.depthwise(x, w, **options))  # type: ignore[arg-type]


def _dense(case_id: str, x: tuple[int, ...], w: tuple[int, ...], **options: object) -> Case:
    return Case(case_id, ConvWorkload.conv2d(x, w, **options))  # type: ignore[arg-type]


DEPTHWISE = (
    _case("3x3", (1, 8, 24, 32), (8, 1, 3, 3)),
    _case("1x1-kernel", (2, 3, 9, 10), (3, 1, 1, 1)),
    _case("one-pixel", (1, 5, 1, 1), (5, 1, 3, 3)),
    _case("one-output", (1, 4, 5, 5), (4, 1, 5, 5), padding="VALID"),
    _case("one-channel", (1, 1, 17, 19), (1, 1, 3, 3)),
    _case("prime-sizes", (3, 7, 29, 31), (7, 1, 3, 3)),
    _case("row", (1, 2, 1, 100), (2, 1, 1, 5)),
    _case("column", (1, 2, 100, 1), (2, 1, 5, 1)),
    _case("small-planes", (2, 48, 7, 7), (48, 1, 3, 3)),
    _case("short-rows", (2, 64, 6, 3), (64, 1, 3, 3)),
    _case("wide", (1, 2, 5, 301), (2, 1, 3, 3)),
    _case("stride-2", (1, 6, 28, 28), (6, 1, 3, 3), stride=2),
    _case("stride-2-odd", (1, 6, 27, 25), (6, 1, 3, 3), stride=2),
    _case("stride-3x1", (1, 4, 20, 21), (4, 1, 3, 3), stride=(3, 1)),
    _case("stride-over-kernel", (1, 4, 23, 23), (4, 1, 2, 2), stride=3, padding="VALID"),
    _case("dilation-2", (1, 4, 19, 22), (4, 1, 3, 3), dilation=2),
    _case("dilation-1x3-stride-2", (1, 4, 19, 22), (4, 1, 3, 3), dilation=(1, 3), stride=2),
    _case("dilated-past-shared-memory", (1, 2, 120, 121), (2, 1, 3, 3), dilation=57),
    _case("5x2-kernel", (1, 4, 15, 16), (4, 1, 5, 2)),
    _case("2x7-kernel", (1, 4, 15, 16), (4, 1, 2, 7)),
    _case("7x7-kernel", (1, 12, 14, 14), (12, 1, 7, 7)),
    _case("11x11-kernel", (1, 2, 20, 40), (2, 1, 11, 11)),
    _case("multiplier-2", (2, 6, 14, 15), (6, 2, 3, 3)),
    _case("multiplier-4", (1, 8, 3, 40), (8, 4, 3, 3)),
    _case("multiplier-4-dilation-7", (1, 8, 3, 40), (8, 4, 3, 3), dilation=7),
    _case("multiplier-3-stride-2", (1, 5, 14, 15), (5, 3, 3, 3), stride=2),
    _case("padding-number", (1, 3, 10, 11), (3, 1, 3, 3), padding=2),
    _case("padding-pair", (1, 3, 10, 11), (3, 1, 3, 3), padding=(0, 2)),
    _case("padding-four", (1, 3, 10, 11), (3, 1, 3, 3), padding=(3, 0, 1, 2)),
    _case("padding-past-kernel", (1, 2, 4, 4), (2, 1, 3, 3), padding=5),
    _case("scale-shift-relu", (1, 8, 21, 22), (8, 1, 3, 3), scale=True, shift=True, activation="relu"),
    _case("shift-relu6", (1, 8, 21, 22), (8, 1, 3, 3), shift=True, activation="relu6"),
    _case("residual-relu", (2, 6, 11, 13), (6, 1, 3, 3), shift=True, residual=True, activation="relu"),
    _case("clip-multiplier-2", (1, 4, 9, 9), (4, 2, 3, 3), scale=True, activation=("clip", -0.5, 1.5)),
    *(_case(dtype, (2, 8, 24, 32), (8, 1, 3, 3), dtype=dtype) for dtype in NARROW),
    *(
        _case(
            f"{dtype}-odd-residual",
            (1, 6, 13, 15),
            (6, 2, 5, 5),
            dtype=dtype,
            stride=2,
            scale=True,
            residual=True,
            activation="relu",
        )
        for dtype in NARROW
    ),
    _case("batch-65", (65, 3, 8, 8), (3, 1, 3, 3)),
)
"""The depthwise convolutions, which take seconds to compile for each target."""

CONV2D = (
    _dense("3x3", (1, 16, 14, 14), (32, 16, 3, 3)),
    _dense("1x1-kernel", (2, 24, 9, 10), (40, 24, 1, 1)),
    _dense("one-pixel", (1, 6, 1, 1), (4, 6, 1, 1)),
    _dense("one-output", (1, 5, 5, 5), (7, 5, 5, 5), padding="VALID"),
    _dense("one-output-channel", (1, 8, 9, 9), (1, 8, 3, 3)),
    _dense("prime-sizes", (3, 7, 13, 17), (11, 7, 3, 3)),
    _dense("few-input-channels", (1, 3, 31, 31), (16, 3, 7, 7), stride=2, padding="VALID"),
    _dense("row", (1, 4, 1, 60), (8, 4, 1, 5)),
    _dense("column", (1, 4, 60, 1), (8, 4, 5, 1)),
    _dense("wide", (1, 2, 5, 131), (18, 2, 3, 3)),
    _dense("small-planes", (2, 64, 5, 5), (48, 64, 3, 3), padding="VALID"),
    _dense("stride-2", (1, 8, 16, 16), (16, 8, 3, 3), stride=2),
    _dense("stride-2-1x1", (1, 16, 15, 15), (32, 16, 1, 1), stride=2),
    _dense("stride-3x1", (1, 4, 14, 15), (8, 4, 3, 3), stride=(3, 1)),
    _dense("stride-over-kernel", (1, 4, 17, 17), (8, 4, 2, 2), stride=3, padding="VALID"),
    _dense("dilation-2", (1, 4, 15, 18), (8, 4, 3, 3), dilation=2),
    _dense("dilation-1x3-stride-2", (1, 4, 15, 18), (8, 4, 3, 3), dilation=(1, 3), stride=2),
    _dense("5x2-kernel", (1, 4, 15, 16), (8, 4, 5, 2)),
    _dense("2x7-kernel", (1, 4, 15, 16), (8, 4, 2, 7)),
    _dense("11x11-kernel-stride-4", (1, 3, 35, 35), (24, 3, 11, 11), stride=4, padding="VALID"),
    _dense("groups-2", (1, 8, 10, 11), (12, 4, 3, 3), groups=2),
    _dense("groups-4-of-16", (2, 32, 7, 7), (64, 8, 3, 3), groups=4),
    _dense("groups-3-1x1", (1, 12, 8, 8), (15, 4, 1, 1), groups=3),
    _dense("groups-2-of-36", (1, 6, 9, 9), (72, 3, 1, 1), groups=2),
    _dense("groups-2-of-3", (1, 128, 7, 9), (6, 64, 3, 3), groups=2),
    *(_dense(f"groups-2-of-3-{dtype}", (1, 256, 5, 5), (6, 128, 1, 1), groups=2, dtype=dtype) for dtype in NARROW),
    _dense("padding-number", (1, 3, 10, 11), (8, 3, 3, 3), padding=2),
    _dense("padding-pair", (1, 3, 10, 11), (8, 3, 3, 3), padding=(0, 2)),
    _dense("padding-four", (1, 3, 10, 11), (8, 3, 3, 3), padding=(3, 0, 1, 2)),
    _dense("padding-past-kernel", (1, 2, 4, 4), (8, 2, 3, 3), padding=5),
    _dense("scale-shift-relu", (1, 8, 13, 14), (24, 8, 3, 3), scale=True, shift=True, activation="relu"),
    _dense("shift-residual-relu", (2, 8, 7, 9), (20, 8, 3, 3), shift=True, residual=True, activation="relu"),
    _dense("clip-groups-2", (1, 4, 9, 9), (8, 2, 3, 3), groups=2, scale=True, activation=("clip", -0.5, 1.5)),
    *(_dense(dtype, (2, 16, 12, 12), (32, 16, 3, 3), dtype=dtype) for dtype in NARROW),
    *(
        _dense(
            f"{dtype}-odd-residual",
            (1, 6, 13, 15),
            (9, 6, 5, 5),
            dtype=dtype,
            stride=2,
            scale=True,
            residual=True,
            activation="relu6",
        )
        for dtype in NARROW
    ),
    _dense("batch-33", (33, 3, 6, 6), (8, 3, 3, 3)),
    _dense("linear-layer", (29, 24, 1, 1), (20, 24, 1, 1), shift=True, residual=True, activation="gelu"),
)
"""The dense convolutions, which take seconds to compile for each target."""
