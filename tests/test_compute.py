"""The TE definitions of convolutions, without a schedule, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te

from tvmconv import compute
from tvmconv.lowering import build
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, Case, check_result, random_operands

CPU = resolve_target("llvm")


def run(tensors: list[te.Tensor], case: Case) -> None:
    executable = build(tvm.IRModule({"main": te.create_prim_func(tensors)}), CPU)
    operands = random_operands(case.workload)
    arrays = [tvm.runtime.tensor(array) for array in operands.values()]
    executable["main"](*arrays)
    check_result(case.workload, operands, arrays[-1].numpy())


@pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)
def test_direct(case: Case) -> None:
    run(compute.direct(case.workload), case)


@pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)
def test_direct_in_whole_tiles(case: Case) -> None:
    run(compute.direct(case.workload, (5, 3, 4)), case)


@pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)
def test_im2win(case: Case) -> None:
    run(compute.im2win(case.workload), case)


@pytest.mark.parametrize("case", CONV2D, ids=lambda case: case.id)
def test_im2win_in_whole_tiles(case: Case) -> None:
    run(compute.im2win(case.workload, (5, 3, 4)), case)


def test_a_residual_that_is_left_out_is_caught() -> None:
    (case,) = (case for case in CONV2D if case.id == "shift-residual-relu")
    operands = random_operands(case.workload)
    without = compute.conv2d_reference(case.workload, **{**without_output(operands), "residual": None})
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(case.workload, operands, without.astype("float32"))


def without_output(operands: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in operands.items() if name != "output"}
