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
    *inputs, (output, (output_shape, output_dtype)) = workload.operands.items()
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, (shape, dtype) in inputs}
    return {**arrays, output: np.full(output_shape, np.nan, output_dtype)}


def check_result(workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray) -> None:
    """Asserts that `got` is the workload's convolution of the operands."""
    if str(got.dtype) != workload.dtype:
        raise AssertionError(f"dtype {got.dtype}, expected {workload.dtype}")
    inputs = {name: array for name, array in operands.items() if name != "output"}
    reference = depthwise_reference(workload, **inputs)
    plain = msgspec.structs.replace(workload, epilogue=msgspec.structs.replace(workload.epilogue, low=None, high=None))
    magnitude = depthwise_reference(plain, **{name: np.abs(array) for name, array in inputs.items()})
    terms = prod(workload.kernel) * (workload.in_channels // workload.groups)
    assert_close(got, reference, magnitude, terms)


def check_sample(
    workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray, rng: np.random.Generator, outputs: int
) -> None:
    """Asserts that `got`, made from an output filled with NaN, is written everywhere and right in a sample.

    The sample is the first, the last and random planes of a depthwise convolution, of some `outputs` elements, or all.
    """
    if unwritten := int(np.isnan(got).sum()):
        raise AssertionError(f"{unwritten} of {got.size} elements are not written")
    channels, m = workload.in_channels, workload.multiplier
    planes = workload.batch * channels
    count = max(2, outputs // (m * prod(workload.output_size)))
    chosen = np.arange(planes)
    if count < planes:
        chosen = np.unique([0, planes - 1, *rng.choice(planes, count - 2, replace=False)])
    image, channel = np.divmod(chosen, channels)
    sampled = {"x": operands["x"][image, channel][None], "w": operands["w"][channel]}
    for name in operands.keys() & {"scale", "shift"}:
        sampled[name] = operands[name].reshape(channels, m)[channel].reshape(-1)
    size = len(chosen)
    part = msgspec.structs.replace(workload, batch=1, in_channels=size, out_channels=size * m, groups=size)
    output = got.reshape(workload.batch, channels, m, *workload.output_size)[image, channel]
    check_result(part, sampled, output.reshape(part.output_shape))
