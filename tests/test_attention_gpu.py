"""One kernel of attention on a real GPU, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from attention_cases import KERNELS, Block, torch

import tvmconv
from tvmconv import lowering, verify
from tvmconv.dtypes import STORAGE_TYPES
from tvmconv.network.attention import KERNEL_NAME
from tvmconv.network.gpu.attention_kernel import attention_kernel
from tvmconv.targets import device_for, has_gpu, resolve_target

pytestmark = [
    pytest.mark.usefixtures("composite_operators"),
    pytest.mark.skipif(not has_gpu(), reason="there is no GPU here"),
]


@pytest.mark.parametrize("name", KERNELS)
def test_numbers(name: str) -> None:
    """They are those of float64, and twice the same."""
    case, target = KERNELS[name], resolve_target("cuda")
    func = attention_kernel(case.attention, case.tile, "attention")
    kernel, device = lowering.build(tvm.IRModule({"attention": func}), target)["attention"], device_for(str(target))
    operands = [tvm.runtime.tensor(array.reshape(-1), device) for array in case.operands().values()]
    results = []
    for _ in range(2):
        dtype = case.attention.out_dtype
        numpy_type = STORAGE_TYPES[dtype].numpy if dtype in STORAGE_TYPES else dtype
        output = tvm.runtime.tensor(np.full(case.attention.output.elements, np.nan, numpy_type), device)
        kernel(*operands, output)
        results.append(output.numpy())
        case.check(results[-1])
    np.testing.assert_array_equal(*results)


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


@pytest.mark.parametrize("word", ["float16", "bfloat16"])
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
    assert found.ratio > {"float16": 60, "bfloat16": 42}[word]
    np.testing.assert_array_equal(*results)
