"""Winograd's convolution on a CPU: its matrices, and its schedule against the float64 reference."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tvm
import tvm_ffi

import tvmconv
from tests.schedules.kernels_here import check_packed, result, run
from tests.schedules.spaces import check_space
from tests.shared.huge_arrays import huge
from tests.shared.sparing import every
from tvmconv import ConvWorkload, compute
from tvmconv.checking.suites import load_suite
from tvmconv.compute.dense.winograd import transforms
from tvmconv.dispatch import algorithms_for, select, template_for
from tvmconv.lowering import build, build_function, lower
from tvmconv.problem import OPEN_SIZES, Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cpu.winograd import LEAST_CHANNELS
from tvmconv.schedules.cpu.winograd import template as winograd
from tvmconv.schedules.cpu.winograd.tiles import (
    MAX_ROW_TILES,
    bands_of,
    max_columns,
    tiles_across,
    weight_bytes,
)
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import cpu_of
from tvmconv.testing import check_result, random_operands
from tvmconv.testing.factors import fma_sums

CPU = resolve_target("llvm")


def layer(channels: int, size: tuple[int, int], outputs: int, block: int = 1, **options: Any) -> ConvWorkload:
    """Return a layer, in blocks of channels where a block is more than one."""
    workload = ConvWorkload.conv2d(
        (options.pop("batch", 1), channels, *size),
        (outputs, channels, 3, 3),
        padding=options.pop("padding", 1),
        **options,
    )
    return (
        workload
        if block == 1
        else msgspec.structs.replace(workload, layout=f"NCHW{block}c", out_layout=f"NCHW{block}c")
    )


WORKLOADS = {
    "whole-tiles": layer(16, (12, 16), 32, scale=True, shift=True, activation="relu"),
    "ragged": layer(5, (13, 11), 21, shift=True, residual=True, activation="silu", batch=2),
    "blocks": layer(32, (14, 14), 48, 16, shift=True, residual=True, batch=4),
    "small-blocks": layer(24, (9, 10), 16, 8, scale=True),
    "no-padding": layer(16, (7, 7), 32, padding=0, batch=6),
    "uneven-padding": layer(20, (6, 30), 24, padding=(2, 0, 1, 3)),
    "one-output": layer(3, (3, 3), 1, padding=0),
    "threads": layer(64, (23, 20), 64, shift=True),
    "bfloat16": layer(32, (13, 12), 32, 16, dtype="bfloat16", scale=True, residual=True, activation="relu"),
    "ragged-bfloat16": layer(12, (9, 14), 21, dtype="bfloat16", shift=True, batch=2),
}
by_name = pytest.mark.parametrize("name", WORKLOADS)


def test_a_network_transforms_a_weight_of_bfloat16_ahead() -> None:
    """The weight in float32, of which only the transform has use, is no operand of the kernel."""
    assert check_packed(WORKLOADS["bfloat16"], "winograd") == ["float32"]


def test_a_plane_of_one_pixel() -> None:
    """Its errors are beside what windows beyond its edges add up: of nine taps one alone meets the pixel."""
    workload = layer(16, (1, 1), 32)
    operands = random_operands(workload)
    operands["w"][:, :, 1, 1] *= 1e-3
    y = result("winograd", workload, operands)
    check_result(workload, operands, y)
    with pytest.raises(AssertionError):
        check_result(workload, operands, y + np.float32(1e-4))
    with pytest.raises(AssertionError):
        check_result(workload, operands, y, precision="strict")


FILTERS = [(2, 3), (4, 3), (4, 5)]
"""Outputs and taps for which there is a kernel."""


@pytest.mark.parametrize(("outputs", "taps"), FILTERS)
def test_matrices_are_exact(outputs: int, taps: int) -> None:
    """Of integers the convolution of each pair of inputs and taps is that of the definition, in fractions."""
    matrices = transforms(outputs, taps)
    for point in range(outputs + taps - 1):
        for tap in range(taps):
            products = [row[tap] * column[point] for row, column in zip(matrices.weight, matrices.input, strict=True)]
            got = [sum(a * b for a, b in zip(row, products, strict=True)) for row in matrices.output]
            assert got == [Fraction(point == output + tap) for output in range(outputs)]


@pytest.mark.parametrize(("outputs", "taps"), FILTERS)
def test_matrices_are_numbers_of_float32(outputs: int, taps: int) -> None:
    """Those of input and output are; a pair of points has rows that differ in the signs of every other element."""
    matrices = transforms(outputs, taps)
    for row in (*matrices.input, *matrices.output):
        assert all(np.float32(value) == value for value in row)
    for matrix in (matrices.input, matrices.weight):
        for plus, minus in zip(matrix[1:-1:2], matrix[2:-1:2], strict=True):
            assert minus == tuple(-value if point % 2 else value for point, value in enumerate(plus))


@pytest.mark.parametrize("name", every(2, WORKLOADS))
def test_default_configuration(name: str) -> None:
    run("winograd", WORKLOADS[name])


@pytest.mark.parametrize(("name", "outputs"), every(2, [("ragged", 2), ("uneven-padding", 4), ("threads", 2)]))
def test_threads_that_share_bands(name: str, outputs: int) -> None:
    """They transform a band together; a band has the rows of several images, or some of one."""
    workload = WORKLOADS[name]
    rows = -(-workload.output_size[0] // outputs)
    default = winograd.default_config(Problem(workload), CPU)
    images = max(size for size in range(1, workload.batch + 1) if workload.batch % size == 0)
    for shape in ({"rows": rows, "images": images}, {"rows": 2, "images": 1}):
        run("winograd", workload, replace(default, outputs=outputs, tiles=3, **shape, shared=True, parallel=True))


@by_name
def test_space_begins_with_the_default_and_is_legal(name: str) -> None:
    problem = Problem(WORKLOADS[name])
    space = winograd.space(problem, CPU)
    check_space(space, winograd.default_config(problem, CPU))
    assert "known_tiles" in space.violated(replace(space.default, outputs=3))
    few = problem.workload.in_channels < LEAST_CHANNELS
    assert ("exact" in space.violated(replace(space.default, outputs=4))) is few
    assert "whole_images" in space.violated(replace(space.default, images=problem.workload.batch + 1))


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64", "znver4"])
def test_registers_hold_the_default_tile(mcpu: str) -> None:
    """A tile's sums, a weight for each of its vectors and an input fit."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    registers, lanes = {"haswell": (16, 8), "x86-64": (16, 4), "znver4": (32, 16)}[mcpu]
    for workload in load_suite("im2win-thesis", "llvm").values():
        problem = Problem(workload)
        if winograd.obstacle(problem, target) is None:
            config = winograd.default_config(problem, target)
            assert winograd.space(problem, target).violated(config) == []
            assert config.vector == lanes
            assert config.vectors * (config.tiles + 1) + 1 <= registers


def test_other_vectors() -> None:
    """Half of a CPU's vectors, as AVX2 has them, compute the same."""
    run("winograd", WORKLOADS["ragged"], target=resolve_target({"kind": "llvm", "mcpu": "haswell"}))


def test_refused() -> None:
    strided = ConvWorkload.conv2d((1, 16, 9, 9), (16, 16, 3, 3), stride=2)
    half = ConvWorkload.conv2d((1, 16, 9, 9), (16, 16, 3, 3), dtype="float16")
    for problem, why in (
        (Problem(strided), "cpu/winograd takes 3x3 kernels with a stride and a dilation of 1"),
        (Problem(half), "cpu/winograd takes float32 or bfloat16, not float16"),
        (Problem(WORKLOADS["ragged"], precision="strict"), "cpu/winograd has errors that depend on outputs nearby"),
        (Problem(ConvWorkload.conv2d((1, 4, 9, 9), (4, 2, 3, 3), groups=2)), "cpu/winograd is for dense .* one group"),
    ):
        with pytest.raises(InvalidArgumentError, match=why):
            select(problem, CPU, algorithm="winograd")


AVX512 = resolve_target({"kind": "llvm", "mcpu": "znver4"})


@pytest.mark.parametrize("mcpu", ["haswell", "x86-64", "znver4"])
def test_every_size_has_a_configuration(mcpu: str) -> None:
    """A row of tiles may be larger than the caches."""
    target = resolve_target({"kind": "llvm", "mcpu": mcpu})
    for channels, size, block in ((4096, (7, 1000), 1), (2048, (224, 224), 32), (1, (3, 5), 1), (256, (900, 3), 64)):
        problem = Problem(layer(channels, size, channels, block))
        space = winograd.space(problem, target)
        assert space.violated(space.default) == []
    with pytest.raises(InvalidArgumentError, match="cpu/winograd takes blocks of at most 64 channels, not 128"):
        select(Problem(layer(256, (9, 9), 256, 128)), target, algorithm="winograd")


def test_taken_where_it_saves_multiplications() -> None:
    for channels, size in ((64, 56), (128, 28), (256, 14)):
        problem = Problem(layer(channels, (size, size), channels))
        assert template_for(problem, AVX512) is winograd
        assert "winograd" not in algorithms_for(msgspec.structs.replace(problem, precision="strict"), AVX512)
    first = Problem(layer(3, (224, 224), 64))
    assert template_for(first, AVX512) is not winograd


def test_small_tiles_where_the_weight_comes_from_memory() -> None:
    """Tiles of 4x4 outputs have a weight 2.25 times as large as those of 2x2."""
    layers = (Problem(layer(c, (s, s), c, 16), constant_weight=True) for c, s in ((64, 56), (512, 7)))
    large, small = (winograd.default_config(problem, AVX512) for problem in layers)
    assert (large.outputs, small.outputs) == (4, 2)


def test_bands_read_a_large_weight_seldom() -> None:
    """Two threads of AVX-512 read a weight that no cache holds at most twice, and have bands of their own else."""
    target = resolve_target({"kind": "llvm", "mcpu": "znver4", "num-cores": 2})
    for channels, size in ((512, 28), (512, 14), (512, 7)):
        workload = layer(channels, (size, size), channels, 16)
        config = winograd.default_config(Problem(workload), target)
        readings = bands_of(workload, config) / (1 if config.shared else 2)
        assert readings <= 2 or weight_bytes(workload, config) <= cpu_of(target).l3_bytes
    for channels, size in ((64, 56), (128, 112)):
        workload = layer(channels, (size, size), channels, 16)
        config = winograd.default_config(Problem(workload), target)
        assert not config.shared
        assert bands_of(workload, config) >= 2


def test_accuracy() -> None:
    """Errors are at most three times those of a sum of multiply-adds, in the root mean square."""
    workload = layer(64, (16, 16), 32)
    operands = random_operands(workload)
    x, w = operands["x"], operands["w"]
    exact = compute.conv2d_reference(workload, x, w)
    config = winograd.Config(4, 4, 1, 8, 1, cpu_of(CPU).lanes, shared=False, parallel=False)
    got = tvmconv.compile(workload, config=config)(x, w)
    patches = np.lib.stride_tricks.sliding_window_view(np.pad(x[0], ((0, 0), (1, 1), (1, 1))), (3, 3), (1, 2))
    sums = fma_sums(patches.transpose(1, 2, 0, 3, 4).reshape(256, -1), w.reshape(32, -1))
    fma = sums.T.reshape(exact.shape)
    error, expected = (float(np.sqrt(np.mean((each - exact) ** 2))) for each in (got, fma))
    assert expected < error <= 3 * expected


OPEN = {
    "batch": ("blocks", ("batch",), None),
    "planes": ("ragged", OPEN_SIZES, None),
    "planes-in-blocks": ("blocks", OPEN_SIZES, winograd.Config(4, 2, 1, 3, 2, 16, shared=False, parallel=True)),
    "shared": ("threads", OPEN_SIZES, winograd.Config(2, 3, 1, 4, 1, 16, shared=True, parallel=True)),
    "height": ("uneven-padding", ("height",), None),
    "width-of-images": ("blocks", ("width",), winograd.Config(4, 4, 2, 6, 1, 16, shared=False, parallel=False)),
}
"""Problems with open sizes: the name of the workload, the sizes, and the configuration if not the default."""


@pytest.mark.parametrize("name", every(2, OPEN))
def test_sizes_that_are_known_only_when_it_runs(name: str) -> None:
    """Sizes are the least there is, those that end inside a tile or a step of tiles, and wide ones."""
    known, open_sizes, config = OPEN[name]
    problem = Problem(WORKLOADS[known], open_sizes=open_sizes)
    func = lower(problem, select(problem, CPU, config, "winograd"), CPU, "kernel")
    kernel = build(tvm.IRModule({"kernel": func}), CPU)["kernel"]
    for sizes in ((1, 1, 1), (3, 9, 8), (1, 5, 27), (2, 18, 50)):
        given = {size: value for size, value in zip(OPEN_SIZES, sizes, strict=True) if size in open_sizes}
        workload = msgspec.structs.replace(problem.workload, **given)
        operands = random_operands(workload)
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        kernel(*tensors)
        check_result(workload, operands, tensors[-1].numpy())


def test_open_sizes_of_bands() -> None:
    """A band has whole steps of a row of open width, and rows of one image where batch or height are open."""
    workload = WORKLOADS["blocks"]
    for open_sizes, config, violated in (
        (("batch",), winograd.Config(4, 4, 2, 6, 1, 16, shared=False, parallel=False), ["whole_images"]),
        (("height",), winograd.Config(4, 4, 2, 6, 1, 16, shared=False, parallel=False), ["whole_images"]),
        (("width",), winograd.Config(4, 4, 2, 6, 1, 16, shared=False, parallel=False), []),
        (("width",), winograd.Config(4, 1, 1, 9, 1, 16, shared=False, parallel=False), ["waste"]),
    ):
        problem = Problem(workload, open_sizes=open_sizes)
        assert winograd.space(problem, AVX512).violated(config) == violated
    assert tiles_across(Problem(workload, open_sizes=("width",)), winograd.LEAST) == 1


def test_wide_rows_that_a_kernel_does_not_count(tmp_path: Path) -> None:
    """A band of one row of tiles has 36 points of 64 channels of four bytes for each four columns."""
    problem = Problem(layer(64, (8, 8), 64, 16), open_sizes=("width",))
    config = winograd.Config(4, 1, 1, 4, 1, 16, shared=False, parallel=False)
    most = (2**31 - 1) // (36 * 64 * 4) * 4
    assert max_columns(problem.workload, config) == most
    kernel = build_function(lower(problem, select(problem, CPU, config, "winograd"), CPU, "kernel"), CPU)
    x = tvm_ffi.from_dlpack(huge(tmp_path, (1, 4, 8, most + 4, 16)))
    with pytest.raises(ValueError, match=f"width: too large, an output has over {most} columns"):
        kernel.executable["kernel"](x, tvm.runtime.empty(problem.workload.w_shape), x)


def test_open_planes_save_multiplications() -> None:
    problem = Problem(layer(64, (112, 112), 64, 16), open_sizes=OPEN_SIZES)
    chosen = select(problem, AVX512)
    assert (chosen.name, chosen.reason) == ("cpu/winograd", "default configuration")
    assert tiles_across(problem, chosen.config) <= MAX_ROW_TILES


def test_tiles_that_do_not_fill_a_band_are_summed_without_a_test() -> None:
    """With a test in the tile that is summed LLVM keeps the sums in memory, at half the speed."""
    problem = Problem(layer(16, (8, 28), 16))  # seven tiles across
    config = replace(winograd.default_config(problem, CPU), outputs=4, rows=1, tiles=3, vectors=1)
    text = str(winograd.schedule(problem, config, CPU).mod["main"])
    products = [part.split("T.reads")[0] for part in text.split('T.sblock("winograd')[1:]]
    assert products
    assert not any("T.where" in part for part in products)
    run("winograd", problem.workload, config)
