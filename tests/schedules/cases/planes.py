"""Depthwise convolutions of whole planes, each with a configuration that its twin and a GPU have to get right."""

from __future__ import annotations

import msgspec

from tests.schedules.cases.bands import EPILOGUE, planes
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise_planes import Config


def last(problem: Problem) -> Problem:
    """Return a problem in NHWC."""
    return msgspec.structs.replace(problem, workload=problem.workload.in_nhwc())


CASES = {
    "7x7": (planes((4, 4, 14, 14), 7), Config(4, 2)),
    "27x27-bfloat16": (planes((2, 2, 14, 14), 27, dtype="bfloat16", shift=True), Config(2, 1)),
    "13x13-narrow": (planes((4, 16, 7, 7), 13, **EPILOGUE), Config(4, 8)),
    "13x13-odd": (planes((3, 3, 7, 7), 13, **EPILOGUE), Config(3, 3)),
    "5x5-valid": (planes((2, 4, 18, 22), 5, padding="VALID", shift=True, activation="relu"), Config(1, 4)),
    "9x9-wide": (planes((2, 2, 28, 28), 9, **EPILOGUE), Config(2, 2)),
    "3x9-uneven": (planes((3, 2, 8, 15), (3, 9), padding=(0, 5, 2, 1), dtype="bfloat16"), Config(3, 2)),
    "5x3-larger": (planes((2, 3, 5, 6), (5, 3), padding=(4, 2, 4, 2), residual=True), Config(2, 3)),
    "3x3-row": (planes((2, 2, 1, 33), (1, 3), padding=(0, 1, 0, 1)), Config(1, 1)),
    "7x7-nhwc": (last(planes((4, 8, 14, 14), 7, **EPILOGUE)), Config(2, 2)),
    "13x13-narrow-nhwc": (last(planes((4, 16, 7, 7), 13, dtype="bfloat16")), Config(4, 4)),
    "5x5-nhwc-valid": (last(planes((3, 6, 13, 19), 5, padding="VALID", **EPILOGUE)), Config(1, 3)),
}
