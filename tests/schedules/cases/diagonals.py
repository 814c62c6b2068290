"""Gradients by the weight on tensor cores, each with tiles that its twin and a GPU have to get right."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import tirx

from tests.schedules.cases.gradients import any_batch, lowered
from tvmconv import ConvWorkload
from tvmconv.schedules.cuda.gradients.diagonals_tiles import Config


def planes(shape: tuple[int, int, int, int], kernel: int | tuple[int, int], **options: Any) -> ConvWorkload:
    """Return a depthwise convolution of x (N, C, H, W), padded such that the output is as large, unless told."""
    rows, columns = (kernel, kernel) if isinstance(kernel, int) else kernel
    dtype = options.pop("dtype", "float16")
    return ConvWorkload.depthwise(shape, (shape[1], 1, rows, columns), dtype=dtype, **options)


CASES = {
    "31x31": (planes((3, 2, 24, 24), 31), Config(8, 1, 1, rows=24, ahead=1, parts=2)),
    "29x29-bfloat16": (planes((2, 2, 14, 28), 29, dtype="bfloat16"), Config(15, 1, 1, 16, 2, 1)),
    "13x13-odd": (planes((9, 2, 7, 7), 13), Config(4, 2, 2, 8, 1, 1)),
    "7x7": (planes((7, 3, 14, 14), 7), Config(1, 2, 1, 16, 2, 2)),
    "7x7-equal-rows": (planes((9, 2, 7, 7), 7), Config(4, 1, 4, 8, 3, 1)),
    "7x7-bands": (planes((3, 2, 19, 40), 7, dtype="bfloat16"), Config(2, 1, 1, 8, 3, 1)),
    "7x9-padding": (planes((3, 2, 19, 40), (7, 9), padding=(0, 5, 2, 1)), Config(1, 2, 1, 8, 2, 3)),
    "5x5-valid": (planes((2, 2, 13, 20), 5, padding="VALID"), Config(2, 1, 1, 16, 2, 1)),
    "5x5-many-parts": (planes((150, 2, 5, 6), 5), Config(1, 1, 1, 8, 1, 64)),
    "3x3-wide": (planes((2, 1, 6, 130), 3), Config(1, 1, 1, 8, 1, 1)),
    "1x12-beyond": (planes((2, 1, 9, 70), (1, 12), padding=(3, 4, 3, 20)), Config(1, 4, 1, 16, 1, 1)),
    "31x31-float32": (planes((3, 2, 24, 24), 31, dtype="float32"), Config(8, 1, 1, 24, 1, parts=2)),
    "13x13-float32-odd": (planes((9, 2, 7, 7), 13, dtype="float32"), Config(4, 2, 2, 8, 1, 1)),
    "7x9-float32-bands": (
        planes((3, 2, 19, 38), (7, 9), dtype="float32", padding=(0, 5, 2, 1)),
        Config(1, 2, 1, 8, 2, 3),
    ),
    "7x14-float32-shares": (
        planes((3, 2, 17, 10), (7, 14), dtype="float32", padding=(7, 5, 5, 5)),
        Config(3, 2, 1, 24, 2, 1),
    ),
    "51x5": (planes((2, 1, 20, 18), (51, 5), dtype="bfloat16"), Config(13, 1, 1, 24, 1, 1)),
}


def scheduled(workload: ConvWorkload, config: Config, target: tvm.target.Target) -> tirx.PrimFunc:
    """Return the scheduled function of a gradient for any batch."""
    return lowered(any_batch("weight_gradient", workload, target), target, config)
