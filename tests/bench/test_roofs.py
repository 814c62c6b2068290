"""The limits of a device below which a roofline has its points."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import tvm

from tvmconv.bench import roofs
from tvmconv.lowering import KERNEL_NAME, build
from tvmconv.targets import resolve_target

CPUS = (
    {"mtriple": "x86_64-linux-gnu", "mcpu": "znver5"},
    {"mtriple": "x86_64-linux-gnu", "mcpu": "haswell"},
    {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-n1"},
    {"mtriple": "aarch64-linux-gnu", "mcpu": "neoverse-v2"},
)
MULTIPLY_ADD, MEMORY = re.compile(r"\b(vfmadd\w+ps|fmla)\s"), re.compile(r"\(%|\[x|\[sp")


def test_as_many_multiply_adds_as_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check by the value, which each multiply-add brings half as near to 1."""
    monkeypatch.setattr(roofs, "STEPS", 5)
    target = resolve_target("llvm")
    factor, results = (tvm.runtime.tensor(np.full(shape, 0.5, "float32")) for shape in roofs.shapes(target))
    build(tvm.IRModule({KERNEL_NAME: roofs.multiply_adds(target)}), target)[KERNEL_NAME](factor, results)
    assert (results.numpy() == 1 - 0.5**6).all()
    operations, call = roofs._multiply_adds(target)
    assert operations == 2 * 5 * results.numpy().size
    call()


@pytest.mark.parametrize("fields", CPUS, ids=lambda fields: fields["mcpu"])
def test_sums_stay_in_registers(fields: dict[str, Any]) -> None:
    target = resolve_target({"kind": "llvm", "num-cores": 2, **fields})
    module = build(tvm.IRModule({KERNEL_NAME: roofs.multiply_adds(target)}), target).mod
    lines = module.inspect_source("asm").splitlines()
    found = [index for index, line in enumerate(lines) if MULTIPLY_ADD.search(line)]
    _, (_, sums, _) = roofs.shapes(target)
    assert len(found) % sums == 0
    assert found
    assert not [line for line in lines[found[0] : found[-1]] if MEMORY.search(line)]


def test_a_cpu_has_roofs(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    for name, value in (("COPIED_BYTES", 2**24), ("STEPS", 2**12), ("SECONDS", 0.001)):
        monkeypatch.setattr(roofs, name, value)
    measured = roofs.measure_roofs(resolve_target("llvm"))
    assert 1e8 < measured.bandwidth < 1e13
    assert 1e9 < measured.flops < 1e14
