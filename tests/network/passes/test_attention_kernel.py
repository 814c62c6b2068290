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
from tests.network.passes.attention_cases import KERNELS, SM_90, Kernel
from tests.shared.sparing import every
from tvmconv import lowering
from tvmconv.network.passes.attention.kernel import AttentionLoops, attention_kernel
from tvmconv.network.passes.attention.shapes import resident_blocks, shared_bytes, tile_for
from tvmconv.network.passes.attention.tf32 import PAIRS
from tvmconv.targets import cuda, resolve_target
from tvmconv.targets.devices import gpu_of


def emulated(case: Kernel) -> tuple[np.ndarray, Emulator]:
    """Return what the kernel of a case computes, and its run."""
    func = attention_kernel(case.attention, case.tile, "attention")
    (kernel,) = device_functions(func, SM_90)
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
    turns = -(-case.attention.keys // case.tile.turn)
    assert len(machine.copied) == turns
    assert max(machine.under_way) == (turns if turns <= case.tile.stages else case.tile.stages - 1)
    assert machine.shared_bytes == shared_bytes(case.attention, case.tile)


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
    attention = Kernel(matrices, 197, 197, 64, 64, "float32", "float32", parts=parts).attention
    assert tile_for(attention, gpu_of(SM_90)).splits == splits


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_tiles_of_long_rows_find_room(dtype: str, arch: str) -> None:
    attention = Kernel(192, 197, 197, 128, 128, dtype, dtype).attention
    gpu = gpu_of(resolve_target({"kind": "cuda", "arch": arch}))
    assert shared_bytes(attention, tile_for(attention, gpu)) < gpu.shared_bytes


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
    func = attention_kernel(case.attention, case.tile, "attention")
    source = str(lowering.build(tvm.IRModule({"attention": func}), target).mod.imports[0].inspect_source())
    (kernel,), ptx, _ = cuda.assembled(source, arch)
    assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
    threads = case.tile.threads * resident_blocks(case.attention, case.tile)
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
