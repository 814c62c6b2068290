"""The gradients of depthwise convolutions that tests try, their functions, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import tvm
from tvm import tirx

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, build, lower
from tvmconv.lowering.serial import TWIN_TARGET, serial_twin, with_shapes
from tvmconv.lowering.workspace import Workspace
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import FLOATS, NARROW
from tvmconv.problem.precision import DEFAULT
from tvmconv.runtime.arrays import from_numpy
from tvmconv.runtime.gradients import Geometry
from tvmconv.runtime.operators import with_any_batch
from tvmconv.targets import resolve_target
from tvmconv.testing import DEPTHWISE, check_result, random_operands

GRADIENTS = ("input_gradient", "weight_gradient")

Arrays = dict[str, np.ndarray]

FORWARD = {case.id: case.workload.without_epilogue() for case in DEPTHWISE if case.workload.dtype in FLOATS}

OWN = {
    **{
        f"{dtype}-stride-{stride}": ConvWorkload.depthwise((3, 6, 15, 17), (6, 2, 3, 3), stride=stride, dtype=dtype)
        for dtype in NARROW
        for stride in (1, 2)
    },
    "stride-2-dilation-2": ConvWorkload.depthwise(
        (2, 3, 17, 16), (3, 1, 3, 4), stride=2, dilation=2, padding=(1, 2, 3, 0)
    ),
    "stride-4x6-dilation-6x4": ConvWorkload.depthwise((1, 2, 40, 41), (2, 1, 5, 5), stride=(4, 6), dilation=(6, 4)),
    "stride-2-multiplier-3": ConvWorkload.depthwise((2, 4, 13, 10), (4, 3, 5, 3), stride=2, dilation=(1, 3)),
    "stride-3-33x3-kernel": ConvWorkload.depthwise((1, 2, 50, 20), (2, 1, 33, 3), stride=3),
    "unread-rows": ConvWorkload.depthwise((2, 3, 11, 12), (3, 1, 2, 2), stride=(5, 4), padding="VALID"),
    "one-column-kernel": ConvWorkload.depthwise((1, 240, 14, 20), (240, 1, 7, 1), stride=3),
    "many-images": ConvWorkload.depthwise((19, 2, 9, 9), (2, 1, 3, 3)),
    "one-channel-of-many-rows": ConvWorkload.depthwise((1, 1, 150, 40), (1, 1, 7, 7)),
}

CASES: Mapping[str, ConvWorkload] = {**FORWARD, **OWN}


SINGLE = {
    name: workload for name, workload in CASES.items() if workload.multiplier == 1 and prod(workload.kernel) <= 100
}
"""The cases that there are gradients in NHWC for."""


def geometry(workload: ConvWorkload) -> Geometry:
    """Return the shapes and parameters of a workload."""
    return Geometry(workload.x_shape, workload.w_shape, workload.stride, workload.padding, workload.dilation)


def any_batch(direction: str, workload: ConvWorkload, target: tvm.target.Target) -> Problem:
    """Return the problem of a gradient for any batch."""
    return with_any_batch(Problem(workload, direction=direction), target)


def lowered(problem: Problem, target: tvm.target.Target, config: Any = None, algorithm: str = "auto") -> tirx.PrimFunc:
    """Return the function of a gradient by a configuration, or the default."""
    return lower(problem, select(problem, target, config, algorithm), target, KERNEL_NAME)


def check_twin(direction: str, workload: ConvWorkload, func: tirx.PrimFunc, workspace: Workspace) -> None:
    """Run the serial twin of a gradient's function for CUDA, and check its result."""
    arrays = random_operands(workload, direction=direction)
    func = with_shapes(func, {name: array.shape for name, array in arrays.items()})
    twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(func)}), resolve_target(TWIN_TARGET))
    memory = [tvm.runtime.empty(shape, dtype) for shape, dtype in workspace.sized(workload)]
    twin[KERNEL_NAME](*map(from_numpy, arrays.values()), *memory)
    check(direction, workload, arrays, arrays["output"])


def check(direction: str, workload: ConvWorkload, arrays: Arrays, got: np.ndarray, precision: str = "strict") -> None:
    """Compare a gradient from these arrays with the float64 reference, by what a word promises of float32 operands."""
    word = precision if workload.dtype == "float32" else DEFAULT
    check_result(workload, arrays, got, precision=word, direction=direction)
