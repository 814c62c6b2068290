"""Operands for a workload, and the check of what a kernel made of them."""

from __future__ import annotations

from itertools import product
from math import prod

import msgspec
import numpy as np

from ..compute import conv2d_reference
from ..workload import ConvWorkload
from .closeness import assert_close


def random_operands(workload: ConvWorkload, seed: int = 0) -> dict[str, np.ndarray]:
    """Normally distributed operands by name, and the output filled with NaN, so that what is not written shows."""
    rng = np.random.default_rng(seed)
    *inputs, (output, (output_shape, output_dtype)) = workload.operands.items()
    arrays = {name: rng.standard_normal(shape).astype(dtype) for name, (shape, dtype) in inputs}
    return {**arrays, output: np.full(output_shape, np.nan, output_dtype)}


def check_result(
    workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray, rounding: float = 0.0
) -> None:
    """Asserts that `got` is the workload's convolution of the operands; for `rounding` see `assert_close`."""
    if str(got.dtype) != workload.dtype:
        raise AssertionError(f"dtype {got.dtype}, expected {workload.dtype}")
    inputs = {name: array for name, array in operands.items() if name != "output"}
    reference = conv2d_reference(workload, **inputs)
    plain = msgspec.structs.replace(workload, epilogue=msgspec.structs.replace(workload.epilogue, low=None, high=None))
    magnitude = conv2d_reference(plain, **{name: np.abs(array) for name, array in inputs.items()})
    terms = prod(workload.kernel) * (workload.in_channels // workload.groups)
    assert_close(got, reference, magnitude, terms, rounding)


def check_sample(
    workload: ConvWorkload,
    operands: dict[str, np.ndarray],
    got: np.ndarray,
    rng: np.random.Generator,
    outputs: int,
    rounding: float = 0.0,
) -> None:
    """Asserts that `got`, made from an output filled with NaN, is written everywhere and right in a sample.

    The sample is of some `outputs` elements, or all. Of a depthwise convolution it is the first, the last and random
    planes; of another one all channels at the corners of the first and the last image and at random positions, half of
    them on the edges.
    """
    if unwritten := int(np.isnan(got).sum()):
        raise AssertionError(f"{unwritten} of {got.size} elements are not written")
    if got.size > outputs and got.shape == workload.output_shape:
        sample = _planes if workload.is_depthwise else _positions
        workload, operands, got = sample(workload, operands, got, rng, outputs)
    check_result(workload, operands, got, rounding)


def _planes(
    workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray, rng: np.random.Generator, outputs: int
) -> tuple[ConvWorkload, dict[str, np.ndarray], np.ndarray]:
    """A sample of the planes of a depthwise convolution, as one of a single image."""
    channels, m = workload.in_channels, workload.multiplier
    planes = workload.batch * channels
    count = outputs // (m * prod(workload.output_size))
    chosen = np.unique([0, planes - 1, *rng.choice(planes, max(0, count - 2), replace=False)])
    image, channel = np.divmod(chosen, channels)
    sampled = {"x": operands["x"][image, channel][None], "w": operands["w"][channel]}
    for name in operands.keys() & {"scale", "shift"}:
        sampled[name] = operands[name].reshape(channels, m)[channel].reshape(-1)
    size = len(chosen)
    part = msgspec.structs.replace(workload, batch=1, in_channels=size, out_channels=size * m, groups=size)

    def chosen_outputs(array: np.ndarray) -> np.ndarray:
        planes = array.reshape(workload.batch, channels, m, *workload.output_size)[image, channel]
        return planes.reshape(part.output_shape)

    if "residual" in operands:
        sampled["residual"] = chosen_outputs(operands["residual"])
    return part, sampled, chosen_outputs(got)


def _positions(
    workload: ConvWorkload, operands: dict[str, np.ndarray], got: np.ndarray, rng: np.random.Generator, outputs: int
) -> tuple[ConvWorkload, dict[str, np.ndarray], np.ndarray]:
    """A sample of the positions of any convolution, as one whose images are what the kernel reads there."""
    ends = [(0, size - 1) for size in (workload.batch, *workload.output_size)]
    chosen = rng.integers(0, [[last + 1] for _, last in ends], (3, max(16, outputs // workload.out_channels)))
    for axis in (1, 2):
        for end in (0, 1):
            chosen[axis, 2 * axis + end :: 8] = ends[axis][end]
    image, *position = np.unique(np.concatenate([np.array([*product(*ends)]).T, chosen], axis=1), axis=1)

    read, inside = [], []
    for axis, size in enumerate((workload.height, workload.width)):
        start = position[axis] * workload.stride[axis] - workload.padding[axis]
        places = start[:, None] + workload.dilation[axis] * np.arange(workload.kernel[axis])
        read.append(np.clip(places, 0, size - 1))
        inside.append(places == read[-1])
    patches = operands["x"][image[:, None, None], :, read[0][:, :, None], read[1][:, None, :]]
    patches = np.where((inside[0][:, :, None] & inside[1][:, None, :])[..., None], patches, 0).transpose(0, 3, 1, 2)

    part = msgspec.structs.replace(
        workload,
        batch=len(image),
        height=workload.kernel[0],
        width=workload.kernel[1],
        stride=(1, 1),
        padding=(0, 0, 0, 0),
        dilation=(1, 1),
    )
    sampled = {**operands, "x": patches.astype(workload.dtype)}
    if "residual" in operands:
        sampled["residual"] = operands["residual"][image, :, position[0], position[1]].reshape(part.output_shape)
    return part, sampled, got[image, :, position[0], position[1]].reshape(part.output_shape)
