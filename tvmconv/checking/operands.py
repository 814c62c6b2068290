"""Operands for a workload, and the check of a kernel's result for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import prod

import msgspec
import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tvmconv.compute import (
    conv2d_reference,
    from_logical,
    input_gradient_reference,
    to_logical,
    weight_gradient_reference,
)
from tvmconv.compute.epilogue import rounded_reference
from tvmconv.compute.functions import Float64
from tvmconv.compute.reference import sums_of_products, with_epilogue
from tvmconv.problem import FORWARD, Problem, Workload, problem_of
from tvmconv.problem.dtypes import FLOAT32_UNIT, STORAGE_TYPES
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.layout import Layout
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload

from .closeness import NOT_ROUNDED, Rounded, assert_close, assert_rounded

FACTORS = ("x", "w", "scale")
"""The operands that are multiplied."""

CHECKED_OUTPUTS = 2**16
"""The most outputs of a kernel that trials and benchmarks compare with the reference; all have to be written."""

DISTINCT = 4_000_037
"""The number of elements of an operand before they repeat: to draw more takes longer than to time a kernel.

It is prime, so that no stride of an array is a multiple of it, and an element that is read by mistake differs from the
right one.
"""


GRADIENTS: dict[str, Callable[..., np.ndarray]] = {
    "input_gradient": input_gradient_reference,
    "weight_gradient": weight_gradient_reference,
}
"""The float64 references of gradients, by direction, of a workload in NCHW and the operands."""


def random_operands(workload: Workload, seed: int = 0, direction: str = FORWARD) -> dict[str, np.ndarray]:
    """Return random operands of a direction by name, and an output in which elements left unwritten show.

    For what the output holds see `unwritten`, for directions `tvmconv.problem.DIRECTIONS`.

    They are normally distributed, and integers evenly; see `random_operand`. After `DISTINCT` elements an operand
    repeats.
    """
    rng, problem = np.random.default_rng(seed), problem_of(workload, direction=direction)
    *inputs, (output, (output_shape, output_dtype)) = problem.operands.items()
    arrays = {name: random_operand(problem, name, rng, min(prod(shape), DISTINCT)) for name, (shape, _) in inputs}
    arrays = {name: np.resize(arrays[name], shape) for name, (shape, _) in inputs}
    return {**arrays, output: np.full(output_shape, unwritten(output_dtype), output_dtype)}


def random_operand(problem: Problem, name: str, rng: np.random.Generator, count: int) -> np.ndarray:
    """Return `count` elements of an operand.

    With sums of integers the scale is such that outputs are about half as large as the numbers of their type.
    """
    workload, (_, dtype) = problem.workload, problem.operands[name]
    if bounds := STORAGE_TYPES[dtype].bounds:
        return rng.integers(*bounds, count, dtype, endpoint=True)
    drawn = rng.standard_normal(count)
    if workload.storage.bounds is not None:
        usual = 1.0 if workload.output_storage.bounds is None else 64.0
        drawn *= usual / (workload.terms**0.5 * TYPICAL**2) if name == "scale" else usual
    return drawn.astype(dtype)


TYPICAL = 74.0
"""The standard deviation of random integers of one byte."""


def unwritten(dtype: str) -> float:
    """Return the number that fills outputs of a type before a kernel runs: NaN, or the largest integer."""
    bounds = STORAGE_TYPES[dtype].bounds
    return np.nan if bounds is None else bounds[1]


def check_result(
    workload: ConvWorkload,
    operands: dict[str, np.ndarray],
    got: np.ndarray,
    rounding: float = 0.0,
    precision: str = DEFAULT,
    direction: str = FORWARD,
) -> None:
    """Assert that `got` is the workload's convolution of the operands, with one of `problem.precision.WORDS`.

    With another of `problem.DIRECTIONS` it is that gradient. For `rounding` see `assert_close`.
    """
    if str(got.dtype) != workload.output_storage.name:
        raise AssertionError(f"dtype {got.dtype}, expected {workload.output_storage.name}")
    Expected(Problem(workload, precision=precision, direction=direction), operands).check(got, rounding)


def layouts_of(problem: Problem) -> dict[str, Layout]:
    """Return the layouts of a problem's images and weights, by name."""
    workload = problem.workload
    x, w, y = workload.x_layout, workload.weight_layout, workload.output_layout
    output = {"input_gradient": x, "weight_gradient": w}.get(problem.direction, y)
    return {"x": x, "w": w, "residual": y, "dy": y, "output": output}


class Expected:
    """The result of a problem in float64, with the error that a kernel's result may have with the problem's precision.

    Sums of integers have no error, and operations on them only their own errors.
    """

    def __init__(self, problem: Problem, operands: dict[str, np.ndarray]) -> None:
        self._workload = workload = problem.workload
        if problem.is_gradient:
            self._set_gradient(problem, operands)
            return
        inputs = {name: array for name, array in operands.items() if name != "output"}
        plain = msgspec.structs.replace(workload, epilogue=workload.epilogue.without_activation())
        row, values = workload.epilogue.row, workload.epilogue.parameters
        steepest = row.steepest(*values)
        x, w = inputs.pop("x"), inputs.pop("w")
        sums, self._terms = sums_of_products(workload, x, w), workload.terms
        reach = 0 if workload.is_depthwise or workload.kernel == (1, 1) else problem.promise.nearby
        if workload.storage.bounds is None:
            largest, nearby = _largest_nearby(workload, np.abs(x), np.abs(w), reach)
        else:
            largest, self._terms, reach = np.abs(sums), 1, 0
        y = with_epilogue(plain, sums, **inputs)
        with np.errstate(all="ignore"):
            self._reference = np.asarray(row.definition(Float64(), y, *values))
            magnitude_of_evaluation = np.maximum(np.abs(self._reference), steepest * np.minimum(np.abs(y), 1))
        magnitudes = {name: np.abs(each.astype(np.float64)) for name, each in inputs.items()}
        self._magnitude = self._nearby = steepest * with_epilogue(plain, largest, **magnitudes)
        if reach:
            self._nearby = steepest * with_epilogue(plain, nearby, **magnitudes)
        self._evaluation = row.roundings * FLOAT32_UNIT * magnitude_of_evaluation
        self._rounded = NOT_ROUNDED
        if unit := problem.promise.operand_unit:
            self._rounded = _rounded(workload, {"x": x, "w": w, **inputs}, unit, steepest)
        elif (unit := problem.promise.product_unit) and workload.dtype == "float32":
            self._rounded = Rounded(unit * self._nearby, unit / 4 * self._nearby)

    def _set_gradient(self, problem: Problem, operands: dict[str, np.ndarray]) -> None:
        """Set the reference of a gradient: sums of products alone."""
        layouts, reference = layouts_of(problem), GRADIENTS[problem.direction]
        inputs = [to_logical(array, layouts[name]) for name, array in operands.items() if name != "output"]
        self._reference, self._magnitude = (
            from_logical(reference(self._workload, *each), layouts["output"])
            for each in (inputs, [np.abs(array) for array in inputs])
        )
        self._nearby, self._terms, self._evaluation = self._magnitude, problem.terms, 0.0
        unit = problem.promise.product_unit if self._workload.dtype == "float32" else 0.0
        self._rounded = Rounded(unit * self._magnitude, unit / 4 * self._magnitude)

    def errors(self, got: np.ndarray) -> np.ndarray:
        """Return the error of each element as a share of the sum of its absolute products."""
        with np.errstate(all="ignore"):
            return np.asarray(np.abs(got.astype(np.float64) - self._reference) / self._magnitude)

    def check(self, got: np.ndarray, rounding: float = 0.0) -> None:
        """Assert that `got` is close to the reference; for `rounding` see `assert_close`."""
        output, workload = self._workload.output_storage, self._workload
        if output.bounds is None:
            assert_close(got, self._reference, self._nearby, self._terms, rounding, self._evaluation, self._rounded)
            return
        error = ((self._terms + 4) * FLOAT32_UNIT + rounding) * self._magnitude + self._evaluation
        exact = output.name == workload.storage.sums
        assert_rounded(got, self._reference, 0.0 if exact else error, partial(rounded_reference, workload=workload))


def _largest_nearby(workload: ConvWorkload, x: np.ndarray, w: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray]:
    """Return each output's sum of products (N, K, H, W), and the largest within `reach` rows and columns of it.

    Planes go on beyond their edges, as tiles do, as far as windows still meet pixels.
    """
    rows, columns = beyond = [
        min(reach, size // step) for size, step in zip(workload.window, workload.stride, strict=True)
    ]
    around = [count * step for count, step in zip(beyond, workload.stride, strict=True)] * 2
    padding = tuple(each + more for each, more in zip(workload.padding, around, strict=True))
    largest = sums_of_products(msgspec.structs.replace(workload, padding=padding), x, w)
    sums = largest[:, :, rows : largest.shape[2] - rows, columns : largest.shape[3] - columns]
    for axis, count in zip((2, 3), beyond, strict=True):
        width = [(0, 0)] * axis + [(reach - count, reach - count)] + [(0, 0)] * (3 - axis)
        largest = sliding_window_view(np.pad(largest, width), 2 * reach + 1, axis).max(-1)
    return sums, largest


def _rounded(workload: ConvWorkload, inputs: dict[str, np.ndarray], unit: float, steepest: float) -> Rounded:
    """Return the errors of products whose two factors are each rounded to the nearest number, by at most a unit.

    They add up like the steps of a random walk, whose lengths are the products. Rounding to the nearest gives a root
    mean square of 0.6 units of the walk's distance, and truncation one of 1.57: one unit is allowed. (By rounding a
    mantissa between 1 and 2, in which small ones are more frequent, a factor is wrong by 0.42 units in the root mean
    square.) Few factors may all have large errors, and so may few sums: a single one is allowed two units.
    """
    products = msgspec.structs.replace(workload, epilogue=Epilogue(scale=workload.epilogue.scale))
    factors = {name: np.abs(array.astype(np.float64)) for name, array in inputs.items() if name in FACTORS}
    largest = conv2d_reference(products, **factors)
    steps = np.sqrt(conv2d_reference(products, **{name: array**2 for name, array in factors.items()}))
    fewest = min(inputs["x"].size, inputs["w"].size, prod(workload.output_shape))
    return Rounded((2 + unit) * unit * steepest * largest, (1 + fewest**-0.5) * unit * steepest * steps)


class Sample:
    """The expected result of a problem with finite operands, in some `outputs` elements or in all.

    For a depthwise convolution and for its gradient by the input these are the first, the last and random planes; for
    its gradient by the weight the first, the last and random channels; for another convolution all channels at the
    corners of the first and the last image and at random positions, half of them on the edges. The reference is
    computed once, for all results.
    """

    def __init__(
        self, problem: Problem, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
    ) -> None:
        workload = problem.workload
        layouts = layouts_of(problem)
        self._operand, self._layout = problem.operands["output"], layouts.pop("output")
        operands = {
            name: to_logical(array, layouts[name]) if name in layouts else array for name, array in operands.items()
        }
        part = workload = workload.in_nchw()
        self._chosen: Choice = _everything
        if prod(self._operand[0]) > outputs:
            by_weight = problem.direction == "weight_gradient"
            choose = _channels if by_weight else _planes if workload.is_depthwise else _positions
            part, operands, self._chosen = choose(workload, operands, rng, outputs)
        self._expected = Expected(msgspec.structs.replace(problem, workload=part), operands)

    def check(self, got: np.ndarray, rounding: float = 0.0) -> None:
        """Assert that `got`, filled with `unwritten` before, is right in the sample, and written everywhere.

        For integers only elements of the sample show that they were not written.
        """
        is_ = (got.shape, str(got.dtype))
        if is_ != self._operand:
            raise AssertionError(f"{' '.join(map(str, is_))}, expected {' '.join(map(str, self._operand))}")
        if count := int(np.isnan(got).sum()):
            raise AssertionError(f"{count} of {got.size} elements are not written")
        self._expected.check(self._chosen(to_logical(got, self._layout)), rounding)


Choice = Callable[[np.ndarray], np.ndarray]
"""A function that selects elements of an output."""


def _everything(array: np.ndarray) -> np.ndarray:
    return array


def _planes(
    workload: ConvWorkload, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
) -> tuple[ConvWorkload, dict[str, np.ndarray], Choice]:
    """Return a sample of planes of a depthwise convolution, or of its gradient, as a workload of a single image."""
    channels, m = workload.in_channels, workload.multiplier
    planes, is_gradient = workload.batch * channels, "dy" in operands
    count = outputs // (workload.height * workload.width if is_gradient else m * prod(workload.output_size))
    chosen = np.unique([0, planes - 1, *rng.choice(planes, max(0, count - 2), replace=False)])
    image, channel = np.divmod(chosen, channels)
    sampled = {"w": operands["w"][channel]}
    for name in operands.keys() & {"scale", "shift"}:
        sampled[name] = operands[name].reshape(channels, m)[channel].reshape(-1)
    size = len(chosen)
    part = msgspec.structs.replace(workload, batch=1, in_channels=size, out_channels=size * m, groups=size)

    def chosen_outputs(array: np.ndarray) -> np.ndarray:
        planes = array.reshape(workload.batch, channels, m, *workload.output_size)[image, channel]
        return planes.reshape(part.output_shape)

    def chosen_inputs(array: np.ndarray) -> np.ndarray:
        return array[image, channel][None]

    if is_gradient:
        return part, {"dy": chosen_outputs(operands["dy"]), **sampled}, chosen_inputs
    if "residual" in operands:
        sampled["residual"] = chosen_outputs(operands["residual"])
    return part, {"x": chosen_inputs(operands["x"]), **sampled}, chosen_outputs


def _channels(
    workload: ConvWorkload, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
) -> tuple[ConvWorkload, dict[str, np.ndarray], Choice]:
    """Return a sample of the channels of a gradient by the weight, as a workload of fewer channels."""
    channels, m = workload.in_channels, workload.multiplier
    count = outputs // prod(workload.w_shape[1:])
    chosen = np.unique([0, channels - 1, *rng.choice(channels, max(0, count - 2), replace=False)])
    size = len(chosen)
    part = msgspec.structs.replace(workload, in_channels=size, out_channels=size * m, groups=size)
    by_channel = operands["dy"].reshape(workload.batch, channels, m, *workload.output_size)
    dy = by_channel[:, chosen].reshape(part.output_shape)
    return part, {"dy": dy, "x": operands["x"][:, chosen]}, lambda array: array[chosen]


def _positions(
    workload: ConvWorkload, operands: dict[str, np.ndarray], rng: np.random.Generator, outputs: int
) -> tuple[ConvWorkload, dict[str, np.ndarray], Choice]:
    """Return a sample of positions of any convolution, as a workload whose images are the patches read there."""
    ends = [(0, size - 1) for size in (workload.batch, *workload.output_size)]
    chosen = rng.integers(0, [[last + 1] for _, last in ends], (3, max(16, outputs // workload.out_channels)))
    for axis in (1, 2):
        for end in (0, 1):
            chosen[axis, 2 * axis + end :: 8] = ends[axis][end]
    image, *position = np.unique(np.concatenate([np.array([*product(*ends)]).T, chosen], axis=1), axis=1)

    read, inside = [], []
    for axis, size in enumerate((workload.height, workload.width)):
        start = position[axis] * workload.stride[axis] - workload.padding[axis]
        indices = start[:, None] + workload.dilation[axis] * np.arange(workload.kernel[axis])
        read.append(np.clip(indices, 0, size - 1))
        inside.append(indices == read[-1])
    patches = operands["x"][image[:, None, None], :, read[0][:, :, None], read[1][:, None, :]]
    within = (inside[0][:, :, None] & inside[1][:, None, :])[..., None]
    patches = np.where(within, patches, workload.zero_point).transpose(0, 3, 1, 2)

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

    def chosen_outputs(array: np.ndarray) -> np.ndarray:
        return array[image, :, position[0], position[1]].reshape(part.output_shape)

    if "residual" in operands:
        sampled["residual"] = chosen_outputs(operands["residual"])
    return part, sampled, chosen_outputs
