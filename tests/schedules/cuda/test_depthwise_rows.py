"""Depthwise convolutions of planes of one row on CUDA: sequences, by vectors in strided parts of a thread."""

from __future__ import annotations

from dataclasses import replace

import pytest
import tvm

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.lowering import build, build_function, lower
from tvmconv.lowering.serial import TWIN_TARGET
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.depthwise import template as depthwise
from tvmconv.schedules.cuda.depthwise.tiles import Config
from tvmconv.targets import cuda, resolve_target
from tvmconv.testing import check_result, random_operands, serial_twin

CPU, SM_90 = resolve_target(TWIN_TARGET), resolve_target({"kind": "cuda", "arch": "sm_90"})


def row(channels: int, width: int, taps: int, dtype: str = "float32", after: int = 0, batch: int = 2) -> ConvWorkload:
    """Return a convolution of sequences that is causal, but for the padding after it."""
    return ConvWorkload.depthwise(
        (batch, channels, 1, width),
        (channels, 1, 1, taps),
        padding=(0, taps - 1, 0, after),
        dtype=dtype,
        shift=True,
        activation="silu",
    )


ROWS = {
    "vectors": row(4, 2048, 4),
    "half": row(3, 2048, 4, "float16"),
    "bfloat16": row(3, 512, 2, "bfloat16"),
    "short": row(12, 40, 3),
    "waste": row(2, 1000, 7, "float16"),
    "odd-output": row(2, 300, 4, after=3),
    "odd-input": row(3, 211, 5, "float16"),
    "64-taps": row(2, 512, 64),
    "128-taps": row(2, 512, 128, "float16"),
    "one-element": row(8, 1, 4),
    "stride": ConvWorkload.depthwise((2, 4, 1, 512), (4, 1, 1, 4), stride=(1, 2), padding=(0, 3, 0, 0)),
    "multiplier": ConvWorkload.depthwise((2, 4, 1, 256), (4, 2, 1, 4), padding=(0, 3, 0, 0)),
}


def default(workload: ConvWorkload) -> Config:
    return depthwise.default_config(Problem(workload), SM_90)


@pytest.mark.parametrize("name", ROWS)
def test_serial_twin(name: str) -> None:
    workload = ROWS[name]
    func = lower(Problem(workload), select(Problem(workload), SM_90, default(workload)), SM_90, "kernel")
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    build(tvm.IRModule({"kernel": serial_twin(func)}), CPU)["kernel"](*tensors)
    check_result(workload, operands, tensors[-1].numpy())


@pytest.mark.parametrize("name", ["half", "short", "odd-output", "128-taps"])
def test_lowered_kernels(name: str) -> None:
    """All threads of the grid, with what they stage in shared memory."""
    workload = ROWS[name].without_epilogue()
    func = lower(Problem(workload), select(Problem(workload), SM_90, default(workload)), SM_90, "kernel")
    arrays = dict(random_operands(workload))
    given = {key: array.copy() for key, array in arrays.items()}
    (kernel,) = device_functions(func, SM_90)
    Emulator(kernel, arrays)
    check_result(workload, given, arrays["output"])


LARGE = {name: row(4096, 2048, taps, dtype, batch=8) for name, taps, dtype in (
    ("4", 4, "float32"), ("4-half", 4, "float16"), ("31-bfloat16", 31, "bfloat16"), ("128", 128, "float32"),
)}  # fmt: skip


@pytest.mark.parametrize("name", LARGE)
def test_cubin(name: str) -> None:
    """A thread has 16 outputs or a window that fits into registers, and loads and stores 16 bytes at once."""
    workload = LARGE[name]
    config = default(workload)
    assert config.load * workload.itemsize == config.store * workload.itemsize == 16
    assert config.threads == 128
    kernel = build_function(lower(Problem(workload), select(Problem(workload), SM_90, config), SM_90, "kernel"), SM_90)
    source = str(kernel.executable.mod.imports[0].inspect_source())
    (found,) = cuda.kernel_resources(source, "sm_90")
    assert (found.spill_store_bytes, found.stack_bytes) == (0, 0)
    assert found.registers <= 64
    assert "*(uint4*)" in source or "*(float4*)" in source


def test_stores_wider_than_16_bytes_are_illegal() -> None:
    space = depthwise.space(Problem(ROWS["vectors"]), SM_90)
    assert "whole_vectors" in space.violated(replace(default(ROWS["vectors"]), thread_x=8, store=8))


@pytest.mark.parametrize("name", ["4", "4-half"])
def test_the_space_has_vectors_in_strided_parts(name: str) -> None:
    space, best = depthwise.space(Problem(LARGE[name]), SM_90), default(LARGE[name])
    assert best in space
    assert {config.vthreads_x for config in space.configs if config.store == best.store} >= {1, 2, 4}
