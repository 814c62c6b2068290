"""CUDA schedules with a batch that is known only when the kernel runs: numbers at several batches without a GPU."""

from __future__ import annotations

from functools import cache

import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir.stmt import SBlockRealize

from tests.emulated.twins_and_cubins import emulated
from tests.open_sizes.batches import BATCHES, CASES
from tests.shared.sparing import sparing
from tvmconv import ConvWorkload
from tvmconv.dispatch import select_ranges
from tvmconv.lowering import KERNEL_NAME, build, build_function, lower
from tvmconv.lowering.gpu.conditions import with_tests_before_loops
from tvmconv.lowering.gpu.intrinsics import with_intrinsics
from tvmconv.lowering.serial import TWIN_TARGET, of_sizes
from tvmconv.lowering.workspace import take_out
from tvmconv.problem import Problem
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

SM_90, CPU = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target(TWIN_TARGET)

NAMES = [*CASES]
EMULATED = ("wgmma", "float32", "tf32-nchw")
"""The cases of odd numbers that `make test` tries in the emulator; the others of them are serial twins there."""

LARGE = ("direct-many-images", "direct-split-k", "im2win-split-k")
"""The cases of even numbers that are serial twins there: in the emulator they take seconds."""


@cache
def scheduled(name: str) -> tirx.PrimFunc:
    """Return the function of a case for any batch."""
    return CASES[name].func(SM_90)


@pytest.mark.parametrize("name", sparing(CASES, lambda number: number % 2 == 1 or NAMES[number] in LARGE))
def test_serial_twin(name: str) -> None:
    """The lowered kernels are tried with the other batches."""
    case, batch = CASES[name], BATCHES[-1]
    func, workspace = take_out(scheduled(name), SM_90)
    twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(of_sizes(func, case.at(batch).operands))}), CPU)
    operands = random_operands(case.at(batch))
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    memory = [tvm.runtime.empty(shape, dtype) for shape, dtype in workspace.sized(case.at(batch))]
    twin[KERNEL_NAME](*tensors, *memory)
    check_result(case.at(batch), operands, tensors[-1].numpy(), precision=case.problem.precision)


@pytest.mark.parametrize(
    "name",
    sparing(CASES, lambda number: (number % 2 == 0 or NAMES[number] in EMULATED) and NAMES[number] not in LARGE),
)
def test_lowered_kernels(name: str) -> None:
    """One function serves for all batches, which are numbers in the emulator alone."""
    for batch in BATCHES:
        emulated(scheduled(name), CASES[name].open, CASES[name].at(batch))


COMPILED = ("direct", "im2win-split-k", "cluster", "float32", "grouped", "depthwise", "tile-is-plane")
"""The cases that `make test` compiles for a GPU: each template, and what sums are shared by."""


@pytest.mark.parametrize("name", sparing(CASES, lambda number: NAMES[number] in COMPILED))
def test_as_few_registers_as_with_a_known_batch(name: str) -> None:
    """There are as many kernels with as much shared memory, and as good as no spills."""
    case = CASES[name]
    known = lower(case.problem, case.selection(SM_90), SM_90, KERNEL_NAME)
    found = []
    for func in (scheduled(name), known):
        source = str(build_function(func, SM_90).executable.mod.imports[0].inspect_source())
        found.append(sorted(cuda.kernel_resources(source, "sm_90"), key=lambda kernel: kernel.name))
    for with_open, with_known in zip(*found, strict=True):
        assert with_open.name == with_known.name
        assert with_open.shared_bytes == with_known.shared_bytes
        assert with_open.spill_store_bytes <= with_known.spill_store_bytes + 16
        assert with_open.registers <= with_known.registers + 24


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_pixel_is_tested_once(dtype: str) -> None:
    """Whole vectors of pixels, or the channels of one, are stored behind a single test, not with one for each."""
    problem = Problem(ConvWorkload.conv2d((8, 32, 28, 28), (128, 32, 1, 1), dtype=dtype), open_sizes=("batch",))
    for each in select_ranges(problem, SM_90):
        func = with_tests_before_loops(with_intrinsics(lower(problem, each.selection, SM_90, KERNEL_NAME)))
        tests: list[bool] = []

        def look(realize: SBlockRealize, output: object = func.params[-1], tests: list[bool] = tests) -> None:
            store = realize.block.body
            if isinstance(store, tirx.BufferStore) and store.buffer.same_as(output):
                tests.append(isinstance(realize.predicate, tirx.IntImm))

        tvm_ffi.structural_walk(func.body, [(SBlockRealize, look)])
        assert tests
        assert all(tests)
