"""The kernel of attention: numbers in the emulator, tiles, and machine code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.emulated.memory import HazardError
from tests.schedules.cases.attention import KERNELS, Kernel
from tests.shared.sparing import every
from tvmconv import lowering
from tvmconv.checking.fused import FusedSample
from tvmconv.checking.operands import random_operands
from tvmconv.dispatch import select
from tvmconv.problem import FusedProblem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.attention import template
from tvmconv.schedules.cuda.attention.kernel import AttentionLoops
from tvmconv.schedules.cuda.attention.tf32 import PAIRS
from tvmconv.schedules.cuda.attention.tiles import Config, least_resident, shared_bytes
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})


def emulated(case: Kernel) -> tuple[np.ndarray, Emulator]:
    """Return what the kernel of a case computes, and its run."""
    (kernel,) = device_functions(case.function(SM_90), SM_90)
    arrays = case.operands()
    arrays["output"] = np.full(case.attention.output.elements, np.nan, case.attention.out_dtype)
    with np.errstate(invalid="ignore"):  # of what threads have that are not active
        machine = Emulator(kernel, arrays)
    return arrays["output"], machine


@pytest.mark.parametrize("name", every(2, KERNELS))
def test_numbers(name: str) -> None:
    """They are those of float64, and every key and value is copied once for each block."""
    case = KERNELS[name]
    found, machine = emulated(case)
    case.check(found)
    turns = -(-case.attention.keys // case.config.turn)
    assert len(machine.copied) == turns
    assert max(machine.under_way) == (turns if turns <= case.config.stages else case.config.stages - 1)
    assert machine.shared_bytes == shared_bytes(case.attention, case.config)


SMALL = {
    "float16": Kernel(2, 37, 197, 24, 40),
    "float32": Kernel(2, 37, 197, 24, 40, "float32", "float32", parts=2),
    "tf32": Kernel(2, 37, 197, 24, 40, "float32", "float32", bias=True),
}
CONFIGS = [(name, number) for name in SMALL for number in range(40)]


@pytest.mark.parametrize(("name", "number"), every(9, CONFIGS))
def test_configurations_of_the_space(name: str, number: int) -> None:
    """Any that a tuner may try is right by the check that it makes."""
    problem = SMALL[name].problem
    configs = template.space(problem, SM_90).configs
    selection = select(problem, SM_90, configs[number % len(configs)])
    (kernel,) = device_functions(lowering.lower(problem, selection, SM_90, "attention"), SM_90)
    arrays = random_operands(problem.workload)
    with np.errstate(invalid="ignore"):
        Emulator(kernel, arrays)
    FusedSample(problem, arrays, np.random.default_rng(0), 2**16).check(arrays["output"])


def test_a_configuration_without_room_for_a_copy_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="stages"):
        select(KERNELS["many-tiles"].problem, SM_90, Config(1, 1))


REFUSED = {
    "rows": (Kernel(1, 9, 9, 20, 16), SM_90, "multiples of 8, not 20"),
    "long rows": (Kernel(1, 9, 9, 16, 136), SM_90, "up to 128 elements"),
    "no tensor cores": (KERNELS["vit"], resolve_target({"kind": "cuda", "arch": "sm_75"}), "sm_80 or later"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_it_does_not_take(name: str) -> None:
    case, target, why = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=why):
        select(case.problem, target)


def test_tensor_cores_do_not_keep_strict() -> None:
    problem = FusedProblem(KERNELS["tf32"].attention, precision="strict")
    with pytest.raises(InvalidArgumentError, match="is not for the precision strict"):
        select(problem, SM_90)


def test_a_copy_before_its_barrier_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    turn = AttentionLoops._turn

    def reversed_turn(*given: Any) -> list[tirx.Stmt]:
        ready, copied, *others = turn(*given)
        return [copied, ready, *others]

    monkeypatch.setattr(AttentionLoops, "_turn", reversed_turn)
    with pytest.raises((HazardError, AssertionError)):
        emulated(KERNELS["many-tiles"])


@pytest.mark.parametrize(("matrices", "splits"), [(6, 4), (24, 1), (192, 1), (768, 1)])
@pytest.mark.parametrize("parts", [1, 2])
def test_tiles_of_float32(matrices: int, splits: int, parts: int) -> None:
    """They are those that were the fastest of three on an H100."""
    problem = Kernel(matrices, 197, 197, 64, 64, "float32", "float32", parts=parts).problem
    assert select(problem, SM_90).config.splits == splits


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tiles_of_long_rows_find_room(dtype: str, arch: str) -> None:
    target = resolve_target({"kind": "cuda", "arch": arch})
    problem = Kernel(192, 197, 197, 128, 128, dtype, dtype).problem
    config = select(problem, target).config
    assert shared_bytes(problem.workload, config) < gpu_of(target).shared_bytes


@pytest.mark.parametrize("missing", PAIRS[2], ids=str)
def test_a_product_left_out_is_seen(missing: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """All three are there for the accuracy of float32."""
    monkeypatch.setitem(PAIRS, 2, [pair for pair in PAIRS[2] if pair != missing])
    case = KERNELS["float32-one-tile"]
    found, _ = emulated(case)
    with pytest.raises(AssertionError):
        case.check(found)


NAMES = ("vit", "bias", "depth-128", "wide", "splits")
CODE = [
    (name, arch) for arch in ("sm_80", "sm_90") for name in (*NAMES, *(f"float32-{name}" for name in NAMES), "tf32")
]


@pytest.mark.parametrize(("name", "arch"), every(3, CODE))
def test_machine_code(name: str, arch: str) -> None:
    """Nothing is spilled, blocks find room as they are meant to, and the instructions are those of tensor cores."""
    case, target = KERNELS[name], resolve_target({"kind": "cuda", "arch": arch})
    executable = lowering.build(tvm.IRModule({"attention": case.function(target)}), target)
    source = str(executable.mod.imports[0].inspect_source())
    (kernel,), ptx, _ = cuda.assembled(source, arch)
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    threads = case.config.threads * least_resident(case.problem, case.config)
    assert kernel.registers * threads <= 65536
    kind, depth = {"float16": ("f16", 16), "bfloat16": ("bf16", 16), "float32": ("tf32", 8)}[case.attention.dtype]
    for instruction in (
        f"mma.sync.aligned.m16n8k{depth}.row.col.f32.{kind}.{kind}.f32",
        "ldmatrix.sync.aligned.m8n8.x4.shared",
        "ld.shared." if depth == 8 else "ldmatrix.sync.aligned.m8n8.x4.trans",
        *("cp.async.cg.shared.global", "ex2.approx.ftz.f32"),
    ):
        assert instruction in ptx, instruction
    assert "int64_t" not in source[source.index("__global__") :]
