"""CUDA schedules for a height and a width that are known only when they run, without a GPU."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
import tvm
from tvm import te, tirx

import tvmconv
from tests.emulated.twins_and_cubins import emulated
from tests.open_sizes.batches import network_of_twins
from tests.open_sizes.planes import CASES, fitting, image, unet
from tests.shared.network_graph import check_network
from tests.shared.passes import use_kernels
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.dispatch import select_ranges
from tvmconv.dispatch.ranges import ASSUMED_SIDES
from tvmconv.lowering import KERNEL_NAME, as_scheduled, build, build_function, limited, lower
from tvmconv.lowering.open_sizes.divisions import with_multiplications
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.lowering.workspace import NO_WORKSPACE
from tvmconv.problem import OPEN_SIZES, Problem
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import serial_twin

SM_90, CPU = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target(TWIN_TARGET)


@cache
def scheduled(name: str) -> tirx.PrimFunc:
    """Return the function of a case for planes of any size."""
    return CASES[name].func(SM_90)


ALIKE = (
    *("direct-split-k", "im2win", "im2win-split-k", "tensor-split-k", "depthwise-large"),
    *("direct-groups", "nhwc-stride-2", "nchw", "int8"),
)
"""Cases of which another has each part: the template, its parts of a sum, the epilogue."""


@pytest.mark.parametrize("name", sparing(CASES, lambda number: [*CASES][number] not in ALIKE))
def test_lowered_kernels(name: str) -> None:
    """One function serves for all sizes, which are numbers in the emulator alone."""
    for workload in fitting(CASES[name])[:3]:
        emulated(scheduled(name), CASES[name].open, workload)


@pytest.mark.parametrize(
    "name", sparing(CASES, lambda number: [*CASES][number] in ("direct", "tensor-strided", "depthwise-large"))
)
def test_nearly_as_few_registers_as_with_known_planes(name: str) -> None:
    """There are as many kernels with as much shared memory, no more spills, and no divisions by a size.

    The host that launches them takes no memory, which it would get on the GPU, where it cannot write.
    """
    case = CASES[name]
    known = lower(case.problem, case.selection(SM_90), SM_90, KERNEL_NAME)
    found = []
    for func in (scheduled(name), known):
        host = build_function(func, SM_90).executable.mod
        assert "TVMBackendAllocWorkspace" not in host.inspect_source("ll")
        source = re.sub(r"//.*", "", str(host.imports[0].inspect_source()))
        found.append(sorted(cuda.kernel_resources(source, "sm_90"), key=lambda kernel: kernel.name))
        assert not re.search(r"[/%] \(?(batch|height|width|rows|columns)", source)
    for with_open, with_known in zip(*found, strict=True):
        assert with_open.name == with_known.name
        assert with_open.shared_bytes == with_known.shared_bytes
        assert with_open.spill_store_bytes <= with_known.spill_store_bytes
        assert with_open.registers <= with_known.registers + 40


def test_divisions_by_multiplications_are_exact() -> None:
    rows, columns, count = (tirx.Var(name, "int32") for name in ("rows", "columns", "count"))
    sizes = te.placeholder((rows, columns), "int8", name="sizes")
    p = te.placeholder((count,), "int32", name="p")

    def indices(i: tirx.Var) -> tuple[tirx.PrimExpr, ...]:
        return (
            p[i] // (rows * columns * 3),
            p[i] // columns % rows,
            p[i] % columns,
            (p[i] // columns < 7).astype("int32"),
        )

    outputs = te.compute((count,), indices, name="indices")
    func = with_multiplications(as_scheduled(te.create_prim_func([sizes, p, *outputs]), KERNEL_NAME))
    assert not re.search("// [rc]|% [rc]", func.script().partition("for ")[2])
    kernel = build(tvm.IRModule({KERNEL_NAME: func}), CPU)[KERNEL_NAME]
    some = np.random.default_rng(0).integers(0, 2**31, 1000)
    for shape in ((1, 1), (1, 2), (3, 1), (7, 7), (224, 223), (1, 2**20), (2**15 + 1, 3), (641, 1333)):
        ends = np.arange(1, 1000)[:, None] * [shape[1], shape[0] * shape[1] * 3] - [[[0]], [[1]]]
        numbers = np.unique(np.concatenate([some, np.arange(1000), 2**31 - 1 - np.arange(1000), ends.ravel()]))
        numbers = numbers[numbers < 2**31]
        found = [tvm.runtime.empty(numbers.shape, "int32") for _ in outputs]
        kernel(tvm.runtime.empty(shape, "int8"), tvm.runtime.tensor(numbers.astype("int32")), *found)
        whole, row, column = numbers // (3 * shape[0] * shape[1]), numbers // shape[1] % shape[0], numbers % shape[1]
        for got, expected in zip(found, (whole, row, column, numbers // shape[1] < 7), strict=True):
            np.testing.assert_array_equal(got.numpy(), expected, str(shape))


def test_ranges_of_pixels() -> None:
    """Each begins between the numbers of pixels that its kernel and the one before are chosen for."""
    problem = Problem(ConvWorkload.conv2d((1, 64, 56, 56), (128, 64, 3, 3)), open_sizes=OPEN_SIZES)
    ranges = select_ranges(problem, SM_90)
    assert 1 < len(ranges) <= len(ASSUMED_SIDES)
    pixels = [int(np.prod(each.problem.workload.output_size)) for each in ranges]
    assert [each.least for each in ranges] == sorted(each.least for each in ranges)
    for before, each, last in zip(pixels, ranges[1:], pixels[1:], strict=False):
        assert before < each.least <= last
    assert select_ranges(problem, resolve_target("llvm"))[1:] == ()


def test_a_network_computes_every_size() -> None:
    """The sizes are in several ranges of each convolution."""
    model = tvmconv.import_model(unet())
    mod, layers = use_kernels(model.mod, SM_90)
    assert {layer.kernel.partition("/")[0] for layer in layers} == {"tvmconv cuda"}
    assert any("pixels of all images on cuda/" in layer.reason for layer in layers)
    for n, height, width in ((1, 2, 4), (1, 90, 88)):
        network = network_of_twins(model, mod, layers, {"n": n, "height": height, "width": width})
        check_network(network, unet(), image(n, 3, height, width), 1e-5)


def test_a_network_builds() -> None:
    network = tvmconv.build(unet(), SM_90)
    assert all(layer.kernel.startswith("tvmconv cuda/") for layer in network.layers)
    assert "height // 2 * 2 == height" in [each.text for each in network._conditions.all]


def test_sizes_past_what_kernels_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image of 8 x 9 is inside limits that larger ones are beyond: of 4 * 72 bytes, and of a tile in width."""
    problem = Problem(ConvWorkload.depthwise((1, 1, 8, 9), (1, 1, 1, 1)), open_sizes=OPEN_SIZES)
    func = lower(problem, select_ranges(problem, SM_90)[0].selection, SM_90, KERNEL_NAME)
    for limit, value, height, width, message in (
        ("MAX_BYTES", 288, 9, 9, "batch, height, width: too large, an array of this call has over 288 bytes"),
        ("MAX_BLOCKS", 1, 8, 99, "height or width: too large, a grid has over 1 tiles"),
    ):
        monkeypatch.setattr(f"tvmconv.lowering.open_sizes.ranges.{limit}", value)
        twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(limited(func, NO_WORKSPACE, SM_90))}), CPU)[KERNEL_NAME]
        monkeypatch.undo()
        x, y = (tvm.runtime.tensor(np.ones((1, 1, height, width), "float32")) for _ in "xy")
        with pytest.raises(ValueError, match=message):
            twin(x, tvm.runtime.tensor(np.ones((1, 1, 1, 1), "float32")), y)
