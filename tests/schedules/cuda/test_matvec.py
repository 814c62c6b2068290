"""Linear layers of few rows on CUDA: what is peculiar to them, beside the tests of every template."""

from __future__ import annotations

import re
from functools import partial

import numpy as np
import pytest
import tvm

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.matvec import rows
from tests.shared.sparing import every
from tvmconv.dispatch import select
from tvmconv.schedules.cuda.matvec import Config
from tvmconv.schedules.cuda.matvec import template as matvec
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands

SM_80, SM_75 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_80", "sm_75"))

emulated = partial(twins_and_cubins.emulated_runs, "matvec")
compiled = partial(twins_and_cubins.compiled, "matvec")


def test_weights_are_read_once() -> None:
    """For all rows of x, each of which the threads of an output read once."""
    (run,) = emulated(rows(3, 1024, 8), Config(2, 2, 2))
    assert run.bytes_read == 2 * 1024 * (8 + 3 * 8)


LAYERS = [(25088, 4096), (4096, 4096), (4096, 1000), (2048, 1000), (512, 1000), (1024, 4096), (768, 3072)]
"""The input and output channels of layers of VGG, ResNet and transformers."""


@pytest.mark.parametrize(("channels", "outputs"), every(2, LAYERS))
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_defaults_load_vectors_ahead(channels: int, outputs: int, dtype: str) -> None:
    """Little's law: 14 bytes a clock and multiprocessor that come after a thousand clocks are 14 KB on their way."""
    problem = rows(1, channels, outputs, dtype)
    config = matvec.default_config(problem, SM_90)
    ptx = compiled(problem, config, SM_90)
    assert len(re.findall(r"ld\.global\.nc\.v4\.[ubf]32", ptx)) >= 2 * config.ahead
    assert ".local" not in ptx
    warps = min(-(-outputs // 132) * config.warps, 64)
    whole = -(-outputs // 132) * channels * problem.workload.itemsize
    assert warps * 32 * 16 * config.ahead >= min(16 * 1024, whole)


@pytest.mark.parametrize("target", [SM_90, SM_80, SM_75], ids=lambda target: str(target.attrs["arch"]))
@pytest.mark.parametrize(("channels", "outputs"), LAYERS)
def test_choice(channels: int, outputs: int, target: tvm.target.Target) -> None:
    """One row is this template's, in any type and on GPUs without tensor cores too; many rows are not."""
    for dtype in ("float32", "float16"):
        assert select(rows(1, channels, outputs, dtype), target).name == "cuda/matvec"
    assert select(rows(32, channels, outputs, "float16"), target).name != "cuda/matvec"


def test_nan_and_infinity_stay_in_their_rows() -> None:
    """What is read twice behind the last term is not added, and what is computed behind the last output not stored."""
    problem = rows(2, 1000, 9)
    operands = random_operands(problem.workload)
    operands["x"][0, 999], operands["w"][8, 0], operands["w"][3, 500] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        emulated(problem, Config(1, 4, 3), **operands)
