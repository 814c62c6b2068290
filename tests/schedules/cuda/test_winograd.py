"""Winograd's convolution on tensor cores: numbers through serial twins and an emulator, and machine code."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from math import prod

import msgspec
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from tests.emulated import twins_and_cubins
from tests.emulated.twins_and_cubins import SM_90
from tests.schedules.cases.tensor import Layouts
from tests.schedules.cases.winograd import CASES, conv
from tests.shared.sparing import every
from tvmconv.compute.dense.winograd import transforms
from tvmconv.dispatch import select
from tvmconv.lowering import lower
from tvmconv.network.passes.convolutions.packing import split_packing
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.model.rates import rates_of
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.schedules.cuda.tensor.winograd import SIZES, Config
from tvmconv.schedules.cuda.tensor.winograd import template as winograd
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import gpu_of
from tvmconv.testing import random_operands
from tvmconv.testing.factors import Factors, Shape, fma_sums, normal, positive, rounded

compiled = partial(twins_and_cubins.compiled, "winograd")
H100 = resolve_target("nvidia/nvidia-h100")


@pytest.mark.parametrize(("problem", "config"), every(3, CASES.values()), ids=CASES)
def test_kernels(problem: Problem, config: Config) -> None:
    """There is a kernel for each transform and one for the product.

    Others take the weight of `wgmma` apart, and lay out an input in NCHW.
    """
    kernels = twins_and_cubins.device_kernels(twins_and_cubins.lowered("winograd", problem, config))
    assert len(kernels) == 4 + config.wgmma + (problem.workload.layout == "NCHW")


def behind_a_relu(rng: np.random.Generator, x: Shape, w: Shape, dtype: str) -> Factors:
    """Return normally distributed factors, of which the negative ones of the first are zeros."""
    first, second = normal(rng, x, w, dtype)
    return np.maximum(first, 0), second


@pytest.mark.parametrize("data", [normal, positive, behind_a_relu])
@pytest.mark.parametrize("taps", SIZES)
def test_errors_beside_multiply_adds(taps: int, data: Callable[..., Factors]) -> None:
    """With the fewest channels errors are up to three times those of sums by fused multiply-adds, as is promised."""
    channels, rng = SIZES[taps].fewest_channels, np.random.default_rng(1)
    output, weight, tile = (np.array(matrix, np.float32) for matrix in transforms(4, taps))
    side = len(tile)
    x, w = (each.astype("f") for each in data(rng, (128, channels, side, side), (16, channels, taps, taps), "float32"))
    points, taken = (
        np.einsum("pr,qs,ncrs->cpqn", matrix, matrix, each, optimize=True, dtype=np.float32)
        for matrix, each in ((tile, x), (weight, w))
    )
    sums = on_tensor_cores(points, taken, SIZES[taps].nearest)
    got = np.einsum("ip,jq,pqnk->nijk", output, output, sums, optimize=True, dtype=np.float32)
    windows = np.moveaxis(sliding_window_view(x, (taps, taps), axis=(2, 3)), 1, -1)  # (n, i, j, R, S, C)
    factors = windows.reshape(len(x) * 16, -1), np.moveaxis(w, 1, -1).reshape(len(w), -1)
    exact = factors[0].astype(np.float64) @ factors[1].T.astype(np.float64)
    ours, fused = (np.abs(each - exact) for each in (got.reshape(exact.shape), fma_sums(*factors)))
    assert np.mean(ours**2) <= 9 * np.mean(fused**2)
    assert ours.max() <= 3 * fused.max()


def on_tensor_cores(x: np.ndarray, w: np.ndarray, nearest: bool) -> np.ndarray:
    """Return the sums (P, Q, N, K) of x (C, P, Q, N) times w (C, P, Q, K), as `wgmma` has them by three products.

    The first factor is rounded to the `nearest` TF32 numbers, or cut off. Each chunk of 32 terms has sums of its own,
    of 8 terms an instruction, which are rounded toward zero.
    """
    (x_cut, x_rest), (w_cut, w_rest) = (
        (high := rounded(each, 10, up), rounded(each - high, 10)) for each, up in ((x, nearest), (w, True))
    )
    sums = np.zeros((*x.shape[1:], w.shape[-1]), np.float32)
    for first in range(0, len(x), 32):
        own = np.zeros_like(sums)
        for a, b in ((x_cut, w_rest), (x_rest, w_cut), (x_cut, w_cut)):
            for start in range(first, min(first + 32, len(x)), 8):
                terms = (each[start : min(start + 8, first + 32)].astype(np.float64) for each in (a, b))
                exact = own + np.einsum("cpqn,cpqk->pqnk", *terms, optimize=True)
                near = exact.astype(np.float32)
                own = np.where(np.abs(near) > np.abs(exact), np.nextafter(near, np.float32(0)), near)
        sums += own
    return sums


@pytest.mark.parametrize(("name", "lanes", "points"), [("whole-tiles", 4, 36), ("5x5", 2, 64)])
def test_threads_move_vectors(name: str, lanes: int, points: int) -> None:
    """A thread of the transforms stores the channels of a point, or of an output, at once."""
    problem, config = CASES[name]
    first, *_, last = re.split(r"\.entry", compiled(problem, config, SM_90))[1:]
    assert [len(re.findall(rf"st\.global\.v{lanes}\.\w+", kernel)) for kernel in (first, last)] == [points, 16]


@pytest.mark.parametrize("name", ["odd-sizes", "5x5"])
def test_a_network_transforms_the_weight_ahead(name: str) -> None:
    """What is computed once is the transformed weight, in two TF32 numbers that add up to it."""
    problem, config = CASES[name]
    kernel, packing = split_packing(lower(problem, select(problem, SM_90, config, "winograd"), SM_90, "kernel"))
    assert packing is not None
    weight = random_operands(problem.workload)["w"]
    (made,) = (each.numpy() for each in packing(weight))
    matrix = np.array(transforms(4, problem.workload.kernel[0]).weight, np.float64)
    expected = np.einsum("pr,qs,krsc->pqkc", matrix, matrix, weight.astype(np.float64))
    np.testing.assert_allclose(made.sum(axis=0).reshape(expected.shape), expected, rtol=0, atol=2e-6)
    assert not (made.view(np.uint32) & 0x1FFF).any()
    assert [str(each.name) for each in kernel.params][:2] == ["x", "packed"]


@pytest.mark.parametrize(
    ("batch", "size", "channels", "saved"),
    [
        (128, 56, 256, 1.86),
        (128, 28, 512, 2.50),
        (128, 14, 512, 1.92),
        (32, 28, 512, 2.34),
        (32, 7, 512, 1.9),
        (8, 28, 256, 1.53),
        (1, 56, 256, 1.56),
        (128, 28, 128, 1.05),
        (32, 56, 64, 0.69),
        (1, 14, 512, 0.84),
    ],
)
def test_choice_in_a_network(batch: int, size: int, channels: int, saved: float) -> None:
    """It is taken where `cuda/tensor` takes longer on an H100, by what was measured."""
    shape = (batch, channels, size, size)
    problem = msgspec.structs.replace(conv(shape, channels, shift=True, activation="relu"), constant_weight=True)
    assert select(problem, H100).name == ("cuda/winograd" if saved > 1 else "cuda/tensor")


def test_the_layout_of_an_input_counts() -> None:
    """One in NCHW is read and written once more, by another kernel."""
    last, first = (
        conv((32, 256, 28, 28), 256, Layouts(layout, "KRSC", "NHWC"), shift=True) for layout in ("NHWC", "NCHW")
    )
    config = winograd.default_config(last, H100)
    more = winograd.estimate(first, config, H100) - winograd.estimate(last, config, H100)
    moved = 2 * prod(last.workload.x_shape) * 4 / gpu_of(H100).bytes_per_clock
    assert moved + rates_of(gpu_of(H100)).further < more < 4 * moved


@pytest.mark.parametrize(
    ("batch", "size", "channels", "outputs", "saved"),
    [(128, 24, 96, 256, 2.03), (128, 28, 96, 96, 1.36), (32, 56, 128, 128, 1.72), (32, 14, 96, 128, 1.61)],
)
def test_choice_of_5x5_in_a_network(batch: int, size: int, channels: int, outputs: int, saved: float) -> None:
    """Its estimate, beside that of `cuda/tensor`, is within a factor of 1.4 of what was measured on an H100."""
    shape, padding = (batch, channels, size, size), 0 if size == 24 else 2
    problem = msgspec.structs.replace(conv(shape, outputs, taps=5, padding=padding), constant_weight=True)
    ours, other = (
        template.estimate(problem, template.default_config(problem, H100), H100) for template in (winograd, tensor)
    )
    assert select(problem, H100).name == "cuda/winograd"
    assert saved / 1.4 < other / ours < saved * 1.4
