"""The gradients of depthwise convolutions that tests try, their operands, and the comparison with the reference."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from tvmconv import ConvWorkload
from tvmconv.checking.closeness import Rounded
from tvmconv.compute import input_gradient_reference, weight_gradient_reference
from tvmconv.problem.dtypes import FLOATS, NARROW
from tvmconv.problem.precision import PRECISIONS
from tvmconv.runtime.gradients import Geometry
from tvmconv.testing import DEPTHWISE, assert_close

GRADIENTS = ("input", "weight")

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


def operands(of: str, workload: ConvWorkload) -> Arrays:
    """Return the arrays that a gradient is computed from, by name in order, and the output, full of NaN."""
    rng, dtype = np.random.default_rng(0), workload.storage.numpy
    other, result = ("w", workload.x_shape) if of == "input" else ("x", workload.w_shape)
    shapes = {"dy": workload.output_shape, other: workload.w_shape if of == "input" else workload.x_shape}
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}
    return {**arrays, "output": np.full(result, np.nan, dtype)}


def in_nhwc(of: str, arrays: Arrays) -> Arrays:
    """Return the arrays of a gradient as they lie in memory in NHWC."""
    images = ("dy", "output") if of == "input" else ("dy", "x")
    return {
        name: np.ascontiguousarray(array.transpose(0, 2, 3, 1)) if name in images else array
        for name, array in arrays.items()
    }


def check(
    of: str, workload: ConvWorkload, arrays: Mapping[str, np.ndarray], got: np.ndarray, precision: str = "strict"
) -> None:
    """Compare a gradient from these arrays with the float64 reference, by what a word promises of float32 operands."""
    reference: Any = input_gradient_reference if of == "input" else weight_gradient_reference
    taken = [array.astype(np.float64) for name, array in arrays.items() if name != "output"]
    summed = (workload.multiplier, *workload.kernel) if of == "input" else (workload.batch, *workload.output_size)
    magnitude = reference(workload, *map(np.abs, taken))
    unit = PRECISIONS[precision].product_unit if workload.dtype == "float32" else 0.0
    products = Rounded(unit * magnitude, unit / 4 * magnitude)
    assert_close(got, reference(workload, *taken), magnitude, prod(summed), operands=products)
