"""Tests of a kernel for a GPU that are made before loops, and what is read before them."""

from __future__ import annotations

import pytest
import tvm
import tvm_ffi
from tvm.script import tirx as T  # noqa: N812 - as TVM spells it

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, as_scheduled, build, lower
from tvmconv.lowering.gpu.conditions import with_tests_before_loops
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import take_out
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.tensor.tiles import Config
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

SM_90, CPU = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target(TWIN_TARGET)
TILE = Config(block_m=64, block_n=32, warps_m=2, warps_n=1, num_stages=2)


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize(("size", "in_last_tile"), [(8, False), (9, True)], ids=["whole-tiles", "last-tile"])
def test_residual_is_read_before_tests(layout: str, size: int, in_last_tile: bool) -> None:
    """A tile beyond the last pixel reads its residual at once, of pixels that exist, and stores what is inside."""
    x_shape, w_shape = ((1, 128, size, size), (32, 128, 1, 1))
    if layout == "NHWC":
        x_shape, w_shape = ((1, size, size, 128), (32, 1, 1, 128))
    workload = ConvWorkload.conv2d(x_shape, w_shape, dtype="float16", residual=True, activation="relu", layout=layout)
    problem = Problem(workload)
    func, workspace = take_out(lower(problem, select(problem, SM_90, TILE, "tensor"), SM_90, KERNEL_NAME), SM_90)
    func = with_tests_before_loops(func)
    assert ("first" in func.script()) == in_last_tile
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    memory = [tvm.runtime.empty(*spec) for spec in workspace.sized(workload)]
    build(tvm.IRModule({KERNEL_NAME: serial_twin(func)}), CPU)[KERNEL_NAME](*tensors, *memory)
    check_result(workload, operands, tensors[-1].numpy())


@T.prim_func(s_tir=True)
def rows_of_three(x: T.Buffer((4, 4), "float16"), output: T.Buffer((4, 4), "float16")):  # type: ignore[no-untyped-def, valid-type]
    for turn in T.unroll(4):
        if turn < 3:
            for lane in T.vectorized(4):
                with T.sblock("store"):
                    i, j = T.axis.remap("SS", [turn, lane])
                    T.where(lane < 3)
                    output[i, j] = x[i, j] + T.float16(1)


def test_tests_of_lanes_stay() -> None:
    """A vector that is not stored as a whole is read where it is stored."""
    func = as_scheduled(rows_of_three, KERNEL_NAME)
    assert tvm_ffi.structural_equal(with_tests_before_loops(func).body, func.body)
