"""Batched products of a network on a GPU: numbers by serial twins, machine code, and what is left to TVM."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tvm
from open_batches import with_twins
from sparing import every

import tvmconv
from tvmconv import cuda, lowering
from tvmconv.network.products import use_products
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("composite_operators")

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})


class Attention(torch.nn.Module):
    """Scores of queries and keys, their softmax, and the sums of values that these weigh."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def factors(length: int, depth: int, dtype: str = "float32") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, depth, generator=generator).to(getattr(torch, dtype)) for _ in range(3)]


BOUNDS = (
    ("float32", "float32", 1e-6),
    ("float32", "tf32", 2e-3),
    ("float16", "float32", 2e-3),
    ("float32", "float16", 2e-3),
    ("float32", "bfloat16", 1.6e-2),
)
"""The type of a model, the precision that it is built with, and the largest error as a share of the largest output."""

SIZES = ((16, 32), (13, 20), (49, 6))


@pytest.mark.parametrize(("size", "of"), every(3, product(SIZES, BOUNDS)), ids=str)
def test_numbers_of_attention(size: tuple[int, int], of: tuple[str, str, float]) -> None:
    """Sizes that fill copies, and others, whose factors get zeros behind them."""
    (length, depth), (dtype, precision, bound) = size, of
    inputs = factors(length, depth, dtype)
    with torch.no_grad():
        expected = Attention()(*(each.double() for each in inputs)).numpy()
    model = tvmconv.import_model(Attention().to(getattr(torch, dtype)), tuple(inputs))
    mod, layers = use_products(model.mod, SM_90, precision)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/tensor"] * 2
    assert [layer.convolution.flops >= 2 * 6 * length**2 * depth for layer in layers] == [True, True]
    executable = lowering.build(with_twins(mod, {}), resolve_target("llvm"))
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    y = (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy().astype("float64")
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=bound * np.abs(expected).max())


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_machine_code(arch: str) -> None:
    """Both products multiply on tensor cores, without spills, and what transposes keys takes no kernel."""
    inputs = tuple(factors(64, 32, "float16"))
    network = tvmconv.build(tvmconv.import_model(Attention().half(), inputs), {"kind": "cuda", "arch": arch})
    assert [str(layer.kernel) for layer in network.layers] == ["tvmconv cuda/tensor"] * 2
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, arch)]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    assert sum("product" in each.name for each in kernels) == 2
    ours = [source for source in sources if "product" in source]
    words = {"wgmma.mma_async" if layer.config["wgmma"] else "mma.sync" for layer in network.layers}
    assert all(any(word in source for word in words) for source in ours)


def products(*shapes: tuple[int, ...]) -> int:
    """Return the number of kernels for the product of two tensors."""
    inputs = tuple(torch.zeros(shape) for shape in shapes)

    class Product(torch.nn.Module):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return torch.matmul(x, y)

    return len(use_products(tvmconv.import_model(Product(), inputs).mod, SM_90)[1])


def test_what_is_left_to_tvm() -> None:
    """Products of one row have nothing to share; a CPU has kernels of TVM's."""
    assert products((2, 4, 8), (2, 8, 4)) == 1
    assert products((7, 8), (8, 5)) == 1
    assert products((2, 1, 8), (2, 8, 4)) == 0
    assert products((2, 4, 1), (2, 1, 4)) == 0
    model = tvmconv.import_model(Attention(), tuple(factors(8, 8)))
    assert use_products(model.mod, resolve_target("llvm"))[1] == ()
    assert use_products(model.mod, resolve_target({"kind": "cuda", "arch": "sm_75"}))[1] == ()
