"""Convolution on the tensor cores of a real GPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tests.schedules.cases.integers import EXACT, random_integers
from tests.schedules.cases.tensor import KINDS, NOTHING_READ, layer, mma, one_chunk, random_layer, wgmma
from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.checking.operands import unwritten
from tvmconv.dispatch import select
from tvmconv.lowering import KERNEL_NAME, Kernel, build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW, QUANTIZED, STORAGE_TYPES
from tvmconv.runtime.arrays import to_torch
from tvmconv.schedules.cuda.tensor import Config
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.targets import device_of, resolve_target, tensor_instructions
from tvmconv.testing import check_result, conformance, random_operands
from tvmconv.testing.configs import legal_configs
from tvmconv.testing.conformance import How
from tvmconv.testing.factors import DATA, Factors, fma_sums
from tvmconv.testing.trials import Trial

TARGET = resolve_target("cuda")


def require(family: str) -> None:
    """Skip a test where the GPU does not have the instruction."""
    if family not in tensor_instructions(TARGET):
        pytest.skip(f"this GPU has no {family}")


def check(problem: Problem, config: Config | None, seed: int = 1) -> None:
    """Check a kernel's result, into an output filled with NaN, against the float64 reference."""
    conformance.check(How(str(TARGET)), Trial.of(problem, "tensor", config, seed))


@pytest.mark.parametrize("problem", NOTHING_READ.values(), ids=NOTHING_READ)
@pytest.mark.parametrize("wgmma", [False, True], ids=["mma", "wgmma"])
def test_padding_alone(wgmma: bool, problem: Problem) -> None:
    require("wgmma" if wgmma else "mma")
    check(problem, one_chunk(problem, wgmma))


@pytest.mark.parametrize("number", range(64))
@pytest.mark.parametrize(("dtype", "precision"), [*KINDS.values(), ("bfloat16", "float32")])
@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_random_convolution(family: str, dtype: str, precision: str, number: int) -> None:
    """A random convolution in random layouts is right in a random configuration of a family of instructions."""
    require(family)
    problem = random_layer(Draw(f"{dtype}/{precision}/{number}"), dtype, precision)
    configs = legal_configs(tensor.space(problem, TARGET), str(number))
    check(problem, next(config for config in configs if config.wgmma == (family == "wgmma")), number)


TILES = (
    *(mma(*tile) for tile in ((16, 16, 1, 1), (32, 32, 1, 1), (32, 64, 2, 2), (64, 64, 2, 1), (64, 128, 2, 4))),
    *(wgmma(64, columns, 1, 1) for columns in (16, 32, 48, 64, 96, 128, 192, 256)),
    *(wgmma(*tile) for tile in ((128, 64, 1, 1), (128, 64, 2, 1), (64, 64, 1, 2), (128, 128, 2, 2), (192, 128, 3, 1))),
)

WIDEST = wgmma(192, 256, 3, 1)
"""A tile whose sums leave too few registers for anything but factors of half precision."""


MOST_SUMS, MOST_THREADS = 48, 256
"""The most sums of a thread and threads of a block for which three products have room in registers."""

PLACES = [
    (config, dtype, precision)
    for config in TILES
    for dtype, precision in (*KINDS.values(), ("bfloat16", "float32"))
    if (config.sums <= MOST_SUMS and config.threads <= MOST_THREADS) or (dtype, precision) != KINDS["float32"]
] + [(WIDEST, dtype, "float32") for dtype in NARROW]


@pytest.mark.parametrize(("config", "dtype", "precision"), PLACES, ids=str)
def test_indices_in_fragments(config: Config, dtype: str, precision: str) -> None:
    """Each output of a tile takes each term from the right index of both factors, and no other.

    One factor has a single 1 in each row, which picks a term of the other one, of small integers: the results are
    exact. So it goes through all terms, with the factors in either order.
    """
    require("wgmma" if config.wgmma else "mma")
    terms, rows, columns = 64, config.block_m, config.block_n
    problem = layer((1, terms, 1, rows), (columns, terms, 1, 1), dtype, precision=precision)
    kernel = matrix_kernel(problem, config)
    rng = np.random.default_rng(0)
    for first in range(terms):
        one_hots = [np.eye(terms)[(np.arange(count) * 5 + first) % terms] for count in (rows, columns)]
        integers = [rng.integers(-128, 129, (count, terms)) for count in (rows, columns)]
        for x, w in ((one_hots[0], integers[1]), (integers[0], one_hots[1])):
            np.testing.assert_array_equal(run(kernel, problem, x, w), x @ w.T)


def matrix_kernel(problem: Problem, config: Config | None) -> Kernel:
    return build_kernel(problem, select(problem, TARGET, config, "tensor"), TARGET)


def run(kernel: Kernel, problem: Problem, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the output of a 1x1 convolution of one row of pixels, as (pixels, channels)."""
    nothing = unwritten(problem.workload.output_storage.name)
    given = {"x": x, "w": w, "output": np.full((len(x), len(w)), nothing)}
    tensors = [
        tvm.runtime.tensor(given[name].reshape(shape).astype(dtype), device_of(TARGET))
        for name, (shape, dtype) in problem.workload.operands.items()
    ]
    memory = [tvm.runtime.empty(*parameter, device_of(TARGET)) for parameter in kernel.workspace.parameters]
    kernel.executable[KERNEL_NAME](*tensors, *memory)
    output: np.ndarray = tensors[-1].numpy().reshape(len(x), len(w)).astype(np.float64)
    return output


# The promise of the precision "float32"

ROWS, COLUMNS = 128, 64
MULTIPLY = {
    "mma": mma(64, 32, 2, 2, 3),
    "wgmma": wgmma(64, 64, 1, 1),
    "mma-split-k": mma(32, 64, 1, 2, 2, split_k=2),
    "default": None,
}
"""The configurations, of which the last one is the problem's default."""


def product_in_float32(name: str, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return `x @ w.T` of float32 numbers as three products of TF32 numbers compute it."""
    config = MULTIPLY[name]
    require("wgmma" if config is not None and config.wgmma else "mma")
    (rows, terms), columns = x.shape, len(w)
    problem = layer((1, terms, 1, rows), (columns, terms, 1, 1), "float32")
    return run(matrix_kernel(problem, config), problem, x, w)


def exact(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    sums: np.ndarray = x.astype(np.float64) @ w.astype(np.float64).T
    return sums


TRIED = [name for name in DATA if name not in ("scattered", "tiny")]
"""The data on which errors are like those of multiply-adds; the others have bounds of their own."""


def factors_of(data: str, terms: int, seed: int) -> Factors:
    """Return float32 factors of a kind, as matrices whose columns are the terms."""
    x, w = DATA[data](np.random.default_rng(seed), (ROWS, terms), (COLUMNS, terms), "float32")
    return x.astype(np.float32), w.astype(np.float32)


def errors_of(name: str, data: str, terms: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the errors of a product and of multiply-adds, beside the sums of absolute products."""
    x, w = factors_of(data, terms, seed=terms)
    want, magnitude = exact(x, w), exact(np.abs(x), np.abs(w))
    errors, of_fma = (np.abs(got - want) / magnitude for got in (product_in_float32(name, x, w), fma_sums(x, w)))
    return errors, of_fma


def rms(errors: np.ndarray) -> float:
    return float(np.sqrt(np.mean(errors**2)))


@pytest.mark.parametrize("terms", [256, 2304])
@pytest.mark.parametrize("data", TRIED)
@pytest.mark.parametrize("name", MULTIPLY)
def test_float32_is_as_exact_as_its_promise(name: str, data: str, terms: int) -> None:
    """Errors are at most three times those of multiply-adds, the largest one and in the root mean square."""
    errors, of_fma = errors_of(name, data, terms)
    assert rms(errors) <= 3 * rms(of_fma)
    assert errors.max() <= 3 * of_fma.max()


@pytest.mark.parametrize("terms", [64, 2304])
@pytest.mark.parametrize("name", MULTIPLY)
def test_few_products_outweigh_the_others(name: str, terms: int) -> None:
    """One multiply-add is wrong by 2^-24 then, and three products by 2^-22, and by the sums of their chunk."""
    errors, _ = errors_of(name, "scattered", terms)
    assert rms(errors) <= 2.0**-21
    assert errors.max() <= 2.0**-20


@pytest.mark.parametrize("name", MULTIPLY)
def test_spike_stays_in_its_row_and_column(name: str) -> None:
    x, w = factors_of("with_spike", 256, seed=0)
    plain_x, plain_w = x.copy(), w.copy()
    plain_x[5], plain_w[11] = 1, 1
    others = np.ix_(np.arange(ROWS) != 5, np.arange(COLUMNS) != 11)
    with_it, without = product_in_float32(name, x, w), product_in_float32(name, plain_x, plain_w)
    np.testing.assert_array_equal(with_it[others], without[others])


@pytest.mark.parametrize("name", MULTIPLY)
@pytest.mark.parametrize("factor", [0, 1], ids=["x", "w"])
def test_denormals_are_no_zeros(name: str, factor: int) -> None:
    """A denormal TF32 number counts 2^-136: half of that is the error of each factor's rest."""
    factors = [*factors_of("normal", 64, seed=0)]
    factors[factor] = (factors[factor] * 2.0**-127).astype(np.float32)
    x, w = factors
    error = np.abs(product_in_float32(name, x, w) - exact(x, w))
    other = np.abs(factors[1 - factor]).sum(axis=1) * 2.0**-136
    assert (error <= (other[:, None] if factor else other)).all()


HUGE = np.array([0x7F7FFFFF, 0x7F7FF000, 0x7F7FEFFF, 0x7F7FE000], np.uint32).view(np.float32)
"""The largest float32 number, the smallest that is nearer to 2^128 than to a TF32 number, the one below, and the
largest TF32 number."""


@pytest.mark.parametrize("name", MULTIPLY)
@pytest.mark.parametrize("factor", [0, 1], ids=["x", "w"])
def test_finite_numbers_give_finite_results(name: str, factor: int) -> None:
    """The largest numbers of either factor and either sign do not become infinite on the way."""
    factors = [np.ones((count, 64), np.float32) for count in (ROWS, COLUMNS)]
    factors[factor][: len(HUGE), 3] = HUGE
    factors[factor][len(HUGE) : 2 * len(HUGE), 3] = -HUGE
    factors[1 - factor] *= 0.25
    x, w = factors
    np.testing.assert_allclose(product_in_float32(name, x, w), exact(x, w), rtol=2.0**-21)


# Integers


@pytest.mark.parametrize("number", range(64))
@pytest.mark.parametrize("family", ["mma", "wgmma"])
def test_random_convolution_of_integers(family: str, number: int) -> None:
    """A random convolution into an output of a random type is right in a random configuration of a family."""
    require(family)
    problem = random_integers(Draw(number))
    configs = legal_configs(tensor.space(problem, TARGET), str(number))
    check(problem, next(config for config in configs if config.wgmma == (family == "wgmma")), number)


@pytest.mark.parametrize("config", [mma(32, 32, 2, 1), wgmma(64, 32, 1, 1), None], ids=["mma", "wgmma", "default"])
@pytest.mark.parametrize("name", EXACT)
def test_exact_integers(name: str, config: Config | None) -> None:
    """The largest sums, and numbers in the middle between two integers, are what they have to be."""
    require("wgmma" if config is not None and config.wgmma else "mma")
    problem, operands, expected = EXACT[name]()
    *_, (shape, dtype) = problem.workload.operands.values()
    kernel = matrix_kernel(problem, config)
    arrays = (*operands.values(), np.ones(shape, dtype))
    tensors = [tvm.runtime.tensor(array, device_of(TARGET)) for array in arrays]
    memory = [tvm.runtime.empty(*parameter, device_of(TARGET)) for parameter in kernel.workspace.parameters]
    kernel.executable[KERNEL_NAME](*tensors, *memory)
    np.testing.assert_array_equal(tensors[-1].numpy(), expected)


@pytest.mark.parametrize("dtype", QUANTIZED)
@pytest.mark.parametrize("config", TILES, ids=str)
def test_indices_of_integers_in_fragments(config: Config, dtype: str) -> None:
    """Each output of a tile takes each of the 128 terms of a chunk from the right index of both factors."""
    require("wgmma" if config.wgmma else "mma")
    terms, rows, columns = 128, config.block_m, config.block_n
    problem = layer((1, terms, 1, rows), (columns, terms, 1, 1), dtype)
    kernel = matrix_kernel(problem, config)
    rng = np.random.default_rng(0)
    x = rng.integers(*(STORAGE_TYPES[dtype].bounds or (0, 0)), (rows, terms), endpoint=True)
    w = rng.integers(-128, 128, (columns, terms))
    for first in range(terms):
        one_hots = [np.eye(terms, dtype=int)[(np.arange(count) * 5 + first) % terms] for count in (rows, columns)]
        for each in ((one_hots[0], w), (x, one_hots[1])):
            np.testing.assert_array_equal(run(kernel, problem, *each), each[0] @ each[1].T)


@pytest.mark.parametrize("order", ["contiguous_format", "channels_last"])
@pytest.mark.parametrize("out_dtype", ["int32", "int8", "uint8", "float32"])
def test_tensors_of_integers(out_dtype: str, order: str) -> None:
    """Tensors of torch go in and out of `tvmconv.conv2d`, with their zero points."""
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {"stride": 2, "out_dtype": out_dtype, "x_zero_point": 130}
    inputs = {} if out_dtype == "int32" else {"scale": True, "residual": True}
    points = {"out_zero_point": 7} if out_dtype in QUANTIZED else {}
    workload = ConvWorkload.conv2d((2, 48, 15, 13), (32, 48, 3, 3), dtype="uint8", **options, **inputs, **points)
    operands = random_operands(workload)
    given = {name: to_torch(array).cuda() for name, array in operands.items() if name != "output"}
    given["x"] = given["x"].to(memory_format=getattr(torch, order))
    y = tvmconv.conv2d(**given, **options, **points)
    assert (y.dtype, y.is_cuda) == (getattr(torch, out_dtype), True)
    assert y.is_contiguous(memory_format=getattr(torch, order))
    check_result(workload, operands, y.cpu().contiguous().numpy())
