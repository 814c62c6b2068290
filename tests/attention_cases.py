"""Attention, its factors, and the results of modules with serial twins in the place of kernels for a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from open_batches import with_twins

from tvmconv import lowering
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")

SM_90, LLVM = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target("llvm")

Shapes = tuple[tuple[int, ...], tuple[int, ...]]


class Attention(torch.nn.Module):
    """Scores of queries and keys, their softmax, and the sums of values that these weigh."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def factors(length: int, depth: int, dtype: str = "float32") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, depth, generator=generator).to(getattr(torch, dtype)) for _ in range(3)]


def first_result(mod: tvm.IRModule, *inputs: torch.Tensor) -> np.ndarray:
    """Return the first result of a module, whose kernels are run as serial twins."""
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    return (found if isinstance(found, tvm.runtime.Tensor) else found[0]).numpy()
