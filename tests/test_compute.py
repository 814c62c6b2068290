"""The TE definitions of convolutions, without a schedule, against the float64 reference."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tvm
from tvm import te

from tvmconv import ConvWorkload, compute
from tvmconv.lowering import build
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, Case, check_result, random_operands

CPU = resolve_target("llvm")


@pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)
@pytest.mark.parametrize("tile", [(1, 1, 1), (5, 3, 4)], ids=["exact", "whole-tiles"])
@pytest.mark.parametrize("definition", [compute.direct, compute.im2win], ids=["direct", "im2win"])
def test_definition(
    definition: Callable[[ConvWorkload, tuple[int, int, int]], list[te.Tensor]],
    tile: tuple[int, int, int],
    case: Case,
) -> None:
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
