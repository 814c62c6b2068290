"""The TE definitions of convolutions, without a schedule, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import numpy as np
import pytest
import tvm
from tvm import te

from tests.shared.sparing import sparing
from tvmconv import ConvWorkload, compute
from tvmconv.lowering import build
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, Case, check_result, random_operands

CPU = resolve_target(TWIN_TARGET)


Definition = Callable[[ConvWorkload, tuple[int, int, int]], list[te.Tensor]]
EXACT, WHOLE_TILES = (1, 1, 1), (5, 3, 4)
WAYS = tuple(product((compute.direct, compute.im2win), (EXACT, WHOLE_TILES)))


@pytest.mark.parametrize(
    ("definition", "tile", "case"),
    sparing(
        ((*way, case) for way, case in product(WAYS, CONV2D)),
        lambda number: number // len(CONV2D) == number % len(CONV2D) // 2 % len(WAYS) and number % len(CONV2D) % 2 == 1,
    ),
    ids=lambda value: getattr(value, "id", getattr(value, "__name__", None)),
)
def test_definition(definition: Definition, tile: tuple[int, int, int], case: Case) -> None:
    """Try every second case in one way; test_conv2d_schedules.py has the others in both definitions, scheduled."""
    executable = build(tvm.IRModule({"main": te.create_prim_func(definition(case.workload, tile))}), CPU)
    operands = random_operands(case.workload)
    arrays = [tvm.runtime.tensor(array) for array in operands.values()]
    executable["main"](*arrays)
    check_result(case.workload, operands, arrays[-1].numpy())


def test_a_residual_that_is_left_out_is_caught() -> None:
    (case,) = (case for case in CONV2D if case.id == "shift-residual-relu")
    operands = random_operands(case.workload)
    without = compute.conv2d_reference(case.workload, **{**without_output(operands), "residual": None})
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(case.workload, operands, without.astype("float32"))


def without_output(operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in operands.items() if name != "output"}
