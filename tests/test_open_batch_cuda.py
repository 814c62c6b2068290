"""CUDA schedules with a batch that is known only when the kernel runs: numbers at several batches without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import pytest
import tvm
from device_functions import device_functions
from emulated_gpu import Emulator
from open_batches import of_batch
from tensor_cases import FIRST, MMA, WGMMA, layer, mma, wgmma
from tvm import tirx

from tvmconv import ConvWorkload, cuda
from tvmconv.dispatch import Selection, select
from tvmconv.lowering import KERNEL_NAME, build, build_function, lower
from tvmconv.lowering.intrinsics import with_intrinsics
from tvmconv.problem import Problem
from tvmconv.serial import TWIN_TARGET
from tvmconv.targets import resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin
from tvmconv.workspace import take_out

SM_90, CPU = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target(TWIN_TARGET)


class Open(NamedTuple):
    """A problem with an open batch, and what its kernel is made with."""

    problem: Problem
    """The problem at the batch that the configuration is chosen for."""
    algorithm: str
    knobs: Mapping[str, Any] = MappingProxyType({})
    """The knobs that are not those of the default configuration."""
    config: Any = None
    """The whole configuration; None for the default one."""

    @property
    def open(self) -> Problem:
        return msgspec.structs.replace(self.problem, open_sizes=("batch",))

    @property
    def selection(self) -> Selection:
        config = self.config or select(self.problem, SM_90, algorithm=self.algorithm).config
        return select(self.problem, SM_90, replace(config, **self.knobs), self.algorithm)

    @property
    def func(self) -> tirx.PrimFunc:
        return lower(self.open, self.selection, SM_90, KERNEL_NAME)

    def at(self, batch: int) -> ConvWorkload:
        return msgspec.structs.replace(self.problem.workload, batch=batch)


def dense(x: tuple[int, ...], w: tuple[int, ...], algorithm: str = "direct", **options: Any) -> Open:
    knobs = options.pop("knobs", {})
    return Open(Problem(ConvWorkload.conv2d(x, w, **options)), algorithm, knobs)


def depthwise(x: tuple[int, ...], w: tuple[int, ...], **options: Any) -> Open:
    return Open(Problem(ConvWorkload.depthwise(x, w, **options)), "depthwise")


EPILOGUE = {"scale": True, "shift": True, "residual": True, "activation": "relu6"}

PLAIN = {
    "depthwise": depthwise((2, 6, 13, 11), (6, 1, 3, 3), scale=True, shift=True, activation="relu6"),
    "depthwise-small": depthwise((8, 12, 5, 5), (12, 2, 3, 3), stride=2, dtype="float16"),
    "depthwise-flat": depthwise((64, 64, 14, 14), (64, 1, 3, 3), residual=True),
    "direct": dense((2, 16, 9, 11), (24, 16, 3, 3), **EPILOGUE),
    "direct-split-k": dense((2, 16, 9, 11), (24, 16, 3, 3), knobs={"split_k": 4}, **EPILOGUE),
    "direct-even-plane": dense((2, 16, 10, 10), (24, 16, 3, 3), stride=2, knobs={"split_k": 1}),
    "direct-tile-in-plane": dense((1, 8, 8, 8), (16, 8, 3, 3), dtype="float16"),
    "direct-plane-in-tile": dense((4, 16, 4, 4), (24, 16, 1, 1), knobs={"split_k": 1}),
    "direct-one-pixel": dense((5, 16, 3, 3), (24, 16, 3, 3), padding=0, dtype="bfloat16"),
    "direct-groups": dense((3, 16, 12, 12), (64, 8, 3, 3), groups=2, dilation=2, scale=True),
    "direct-many-images": dense((64, 16, 14, 14), (32, 16, 3, 3), residual=True),
    "im2win": dense((2, 16, 9, 11), (24, 16, 3, 3), "im2win", knobs={"split_k": 1}, **EPILOGUE),
    "im2win-split-k": dense((2, 16, 10, 10), (24, 16, 3, 3), "im2win", knobs={"split_k": 2}, stride=2),
    "im2win-many-images": dense((64, 16, 14, 14), (32, 16, 5, 5), "im2win", dtype="float16"),
}

TENSOR = {
    "mma": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), **EPILOGUE), "tensor", config=MMA),
    "wgmma": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), "bfloat16"), "tensor", config=WGMMA),
    "nchw": Open(layer((2, 24, 10, 10), (32, 24, 3, 3), layouts=FIRST, **EPILOGUE), "tensor", config=MMA),
    "nchw-wgmma": Open(layer((2, 24, 8, 8), (32, 24, 3, 3), layouts=FIRST), "tensor", config=WGMMA),
    "tile-is-plane": Open(layer((2, 64, 8, 8), (32, 64, 1, 1)), "tensor", config=WGMMA),
    "one-pixel": Open(layer((2, 64, 1, 1), (32, 64, 1, 1)), "tensor", config=mma(16, 32, 1, 2)),
    "split-k": Open(layer((2, 64, 7, 9), (64, 64, 3, 3), **EPILOGUE), "tensor", config=mma(32, 32, 2, 1, split_k=3)),
    "groups-nchw-split-k": Open(
        layer((1, 48, 6, 6), (64, 24, 3, 3), groups=2, layouts=FIRST), "tensor", config=wgmma(64, 32, 1, 1, split_k=2)
    ),
    "groups": Open(layer((2, 256, 5, 5), (128, 64, 1, 1), groups=4), "tensor", config=WGMMA),
    "float32": Open(layer((2, 32, 7, 6), (32, 32, 3, 3), "float32", stride=2), "tensor", config=MMA),
    "tf32-nchw": Open(
        layer((2, 32, 10, 10), (32, 32, 3, 3), "float32", FIRST, precision="tf32"), "tensor", config=WGMMA
    ),
}

BATCHES = (1, 3, 7)
"""Batches with another number of tiles each, the last of which ends in different places of a tile."""

by_case = pytest.mark.parametrize("case", {**PLAIN, **TENSOR}.values(), ids={**PLAIN, **TENSOR})


@by_case
def test_serial_twin(case: Open) -> None:
    func, workspace = take_out(case.func, SM_90)
    for batch in BATCHES:
        twin = build(tvm.IRModule({KERNEL_NAME: serial_twin(of_batch(func, batch))}), CPU)
        operands = random_operands(case.at(batch))
        tensors = [tvm.runtime.tensor(array) for array in operands.values()]
        memory = [tvm.runtime.empty(shape, dtype) for shape, dtype in workspace.sized(batch)]
        twin[KERNEL_NAME](*tensors, *memory)
        check_result(case.at(batch), operands, tensors[-1].numpy(), precision=case.problem.precision)


@by_case
def test_lowered_kernels(case: Open) -> None:
    """One lowering serves for all batches, which are numbers in the emulator alone."""
    func, _ = take_out(with_intrinsics(case.func), SM_90)
    for batch in BATCHES:
        arrays = random_operands(case.at(batch))
        operands = {name: array.copy() for name, array in arrays.items()}
        for kernel in device_functions(func, SM_90, {"batch": batch}):
            Emulator(kernel, arrays)
        check_result(case.at(batch), operands, arrays["output"], precision=case.problem.precision)


@by_case
def test_as_few_registers_as_with_a_known_batch(case: Open) -> None:
    """There are as many kernels with as much shared memory, and as good as no spills."""
    known = lower(case.problem, case.selection, SM_90, KERNEL_NAME)
    found = []
    for func in (case.func, known):
        source = str(build_function(func, SM_90).executable.mod.imports[0].inspect_source())
        found.append(sorted(cuda.kernel_resources(source, "sm_90"), key=lambda kernel: kernel.name))
    for with_open, with_known in zip(*found, strict=True):
        assert with_open.name == with_known.name
        assert with_open.shared_bytes == with_known.shared_bytes
        assert with_open.spill_store_bytes <= with_known.spill_store_bytes + 16
        assert with_open.registers <= with_known.registers + 24
