"""Attention: modules, and the results of modules with serial twins."""

from __future__ import annotations

import numpy as np
import pytest
import tvm

from tests.open_sizes.batches import with_twins
from tvmconv import lowering
from tvmconv.lowering.serial import TWIN_TARGET
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
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), resolve_target(TWIN_TARGET)), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    return (found if isinstance(found, tvm.runtime.Tensor) else found[0]).numpy()


class Block(torch.nn.Module):
    """Attention between the layers that a transformer has around it, perhaps by torch's own function."""

    def __init__(self, width: int, heads: int, scaled: bool = False) -> None:
        super().__init__()
        self.heads, self.scaled = heads, scaled
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.nn.functional.scaled_dot_product_attention(*parts) if self.scaled else Attention()(*parts)
        return self.projection(y.transpose(1, 2).reshape(n, length, width))
