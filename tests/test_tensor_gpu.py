"""Convolution on the tensor cores of a real GPU."""

from __future__ import annotations

from itertools import product

import msgspec
import numpy as np
import pytest
import tvm
from tensor_cases import CASES, MMA, NOTHING_READ, WGMMA, half, mma, random_layer, wgmma

from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import select
from tvmconv.dtypes import NARROW
from tvmconv.lowering import KERNEL_NAME, Kernel, build_kernel
from tvmconv.problem import Problem
from tvmconv.schedules.cuda import tensor
from tvmconv.schedules.cuda.tensor import Config
from tvmconv.targets import device_of, has_gpu, resolve_target, tensor_instructions
from tvmconv.testing import conformance
from tvmconv.testing.configs import legal_configs
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")


def require(family: str) -> None:
    """Skip a test where the GPU does not have the instruction."""
    if family not in tensor_instructions(TARGET):
        pytest.skip(f"this GPU has no {family}")


def check(workload: ConvWorkload, config: Config | None, seed: int = 1, nonfinite: bool = False) -> None:
    """Check a kernel's result, into an output filled with NaN, against the float64 reference."""
    knobs = None if config is None else msgspec.to_builtins(config)
    conformance.check(How(str(TARGET)), Trial(workload, "tensor", knobs, seed, nonfinite))


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str) -> None:
    workload, config = CASES[name]
    require("wgmma" if config.wgmma else "mma")
    check(workload, config)


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    require("mma")
    workload, _ = CASES[name]
    check(workload, None, nonfinite=True)


@pytest.mark.parametrize("config", [MMA, WGMMA], ids=["mma", "wgmma"])
def test_padding_alone(config: Config) -> None:
    require("wgmma" if config.wgmma else "mma")
    check(NOTHING_READ, config)


@pytest.mark.parametrize(("family", "dtype", "number"), [*product(("mma", "wgmma"), NARROW, range(64))])
def test_random_convolution(family: str, dtype: str, number: int) -> None:
    """A random convolution is right in a random configuration of a family of instructions."""
    require(family)
    workload = random_layer(Draw(f"{dtype}/{number}"), dtype)
    configs = legal_configs(tensor.space(Problem(workload), TARGET), str(number))
    check(workload, next(config for config in configs if config.wgmma == (family == "wgmma")), number)


TILES = (
    *(mma(*tile) for tile in ((16, 16, 1, 1), (32, 32, 1, 1), (32, 64, 2, 2), (64, 64, 2, 1), (64, 128, 2, 4))),
    *(wgmma(64, columns, 1, 1) for columns in (16, 32, 48, 64, 96, 128, 192, 256)),
    *(wgmma(*tile) for tile in ((128, 64, 1, 1), (128, 64, 2, 1), (64, 64, 1, 2), (128, 128, 2, 2))),
)


@pytest.mark.parametrize(("config", "dtype"), [*product(TILES, NARROW)], ids=str)
def test_places_in_fragments(config: Config, dtype: str) -> None:
    """Each output of a tile takes each term from the right place of both factors, and no other.

    One factor has a single 1 in each row, which picks a term of the other one, of small integers: the results are
    exact. So it goes through all terms, with the factors in either order.
    """
    require("wgmma" if config.wgmma else "mma")
    terms, rows, columns = 64, config.block_m, config.block_n
    workload = half((1, terms, 1, rows), (columns, terms, 1, 1), dtype)
    kernel = build_kernel(Problem(workload), select(Problem(workload), TARGET, config, "tensor"), TARGET)
    rng = np.random.default_rng(0)
    for first in range(terms):
        one_hots = [np.eye(terms)[(np.arange(count) * 5 + first) % terms] for count in (rows, columns)]
        integers = [rng.integers(-128, 129, (count, terms)) for count in (rows, columns)]
        for x, w in ((one_hots[0], integers[1]), (integers[0], one_hots[1])):
            np.testing.assert_array_equal(run(kernel, workload, x, w), x @ w.T)


def run(kernel: Kernel, workload: ConvWorkload, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """Return the output of a 1x1 convolution of one row of pixels, as (pixels, channels)."""
    given = {"x": x, "w": w, "output": np.full((len(x), len(w)), np.nan)}
    tensors = [
        tvm.runtime.tensor(given[name].reshape(shape).astype(dtype), device_of(TARGET))
        for name, (shape, dtype) in workload.operands.items()
    ]
    kernel.executable[KERNEL_NAME](*tensors)
    output: np.ndarray = tensors[-1].numpy().reshape(len(x), len(w)).astype(np.float64)
    return output
