"""Operands for a workload, and the check of what a kernel made of them."""

from __future__ import annotations

from math import prod

import msgspec
import numpy as np

from ..compute import depthwise_reference
from ..workload import ConvWorkload
from .closeness import assert_close


def random_operands(workload: ConvWorkload, seed: int = 0) -> dict[str, np.ndarray]:
    """Normally distributed operands by name, and the output filled with NaN, so that what is not written shows."""
    rng = np.random.default_rng(seed)
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, (shape, dtype) in workload.operands.items()}
    arrays["output"].fill(np.nan)
    return arrays


def check_result(workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray) -> None:
    """Asserts that `got` is the workload's convolution of the operands."""
    assert str(got.dtype) == workload.dtype, f"dtype {got.dtype}, expected {workload.dtype}"
    inputs = {name: array for name, array in operands.items() if name != "output"}
    reference = depthwise_reference(workload, **inputs)
    plain = msgspec.structs.replace(workload, epilogue=msgspec.structs.replace(workload.epilogue, low=None, high=None))
    magnitude = depthwise_reference(plain, **{name: np.abs(array) for name, array in inputs.items()})
    terms = prod(workload.kernel) * (workload.in_channels // workload.groups)
    assert_close(got, reference, magnitude, terms)
