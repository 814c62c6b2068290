"""One kernel of attention on a real GPU, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tests.network.passes.attention_cases import KERNELS, Block, Kernel, torch
from tvmconv import lowering
from tvmconv.checking import verify
from tvmconv.network.passes.attention import KERNEL_NAME
from tvmconv.network.passes.attention.kernel import attention_kernel
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import device_for, has_gpu, resolve_target

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")


def computed(case: Kernel, times: int) -> list[np.ndarray]:
    """Return what the kernel of a case computes, several times."""
    target, dtype = resolve_target("cuda"), case.attention.out_dtype
    func = attention_kernel(case.attention, case.tile, "attention")
    kernel, device = lowering.build(tvm.IRModule({"attention": func}), target)["attention"], device_for(str(target))
    operands = [tvm.runtime.tensor(array.reshape(-1), device) for array in case.operands().values()]
    results = []
    for _ in range(times):
        output = np.full(case.attention.output.elements, np.nan, STORAGE_TYPES[dtype].numpy)
        result = tvm.runtime.tensor(output, device)
        kernel(*operands, result)
        results.append(result.numpy())
    return results


@pytest.mark.parametrize("name", KERNELS)
def test_numbers(name: str) -> None:
    """They are those of float64, and twice the same."""
    results = computed(KERNELS[name], 2)
    KERNELS[name].check(results[0])
    np.testing.assert_array_equal(*results)


CHAINS = {
    "vit": Kernel(6, 197, 197, 64, 64, "float32", "float32", scale=0.125, size=3, parts=2),
    "long": Kernel(1, 64, 2048, 64, 64, "float32", "float32", scale=0.125, parts=2),
    "wide": Kernel(2, 64, 300, 128, 128, "float32", "float32", scale=0.125, tile_keys=32, parts=2),
}
"""Kernels in float32 of sizes that networks have."""


@pytest.mark.parametrize("name", CHAINS)
def test_accuracy_of_float32(name: str) -> None:
    """Errors are at most three times those of chains of multiply-adds: tensor cores round toward zero, unseen here."""
    case = CHAINS[name]
    (found,), expected = computed(case, 1), case.expected()
    errors = [np.sqrt(np.mean((y.reshape(expected.shape) - expected) ** 2)) for y in (found, case.in_chains())]
    print(f"{name}: {errors[0]:.3g}, by chains {errors[1]:.3g}")
    assert errors[0] < 3 * errors[1]


class Cross(torch.nn.Module):
    """Attention of one sequence to another one of another length."""

    def forward(self, x: Any, y: Any) -> Any:
        q, k = (each.unflatten(-1, (4, 48)).transpose(1, 2) for each in (x, y))
        return torch.nn.functional.scaled_dot_product_attention(q, k, k + 1).transpose(1, 2).flatten(2)


NETWORKS = {
    "vit": (Block(384, 6, scaled=True), ((2, 197, 384),)),
    "many": (Block(128, 2), ((300, 50, 128),)),
    "long": (Block(128, 1), ((2, 2100, 128),)),
    "wide-heads": (Block(256, 2), ((3, 77, 256),)),
    "cross": (Cross(), ((3, 65, 192), (3, 131, 192))),
}
"""Modules of attention, with the shapes of their inputs."""


RATIOS = {"float16": 60, "bfloat16": 42, "float32": 115}
"""The least ratio of signal to noise, in dB."""


@pytest.mark.parametrize("word", RATIOS)
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name: str, word: str) -> None:
    torch.manual_seed(2)
    module, shapes = NETWORKS[name]
    inputs = tuple(torch.randn(shape) for shape in shapes)
    network = tvmconv.build(tvmconv.import_model(module.eval(), inputs), "cuda", precision=word)
    assert [layer.kernel for layer in network.layers].count(KERNEL_NAME) == 2
    with torch.no_grad():
        expected = module.double()(*(each.double() for each in inputs)).float().numpy()
        module.float()
    results = [network(*(each.numpy() for each in inputs)) for _ in range(2)]
    (found,) = verify.compare({"y": np.asarray(results[0])}, {"y": expected}, {word})
    assert found.agrees
    assert found.ratio > RATIOS[word]
    np.testing.assert_array_equal(*results)
