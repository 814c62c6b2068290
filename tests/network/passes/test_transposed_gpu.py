"""Transposed convolutions on a real GPU, beside float64."""

from __future__ import annotations

import pytest

import tvmconv
from tests.network.passes.transposed_cases import CASES, Transposed, level, torch

SHARES = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3.2e-2}
"""The largest error for each precision, as a share of the largest number."""


def check(module: torch.nn.Module, x: torch.Tensor, precision: str) -> None:
    model = tvmconv.import_model(module, (x,))
    network = tvmconv.build(model, "cuda", precision=precision)
    assert all(layer.kernel.startswith("tvmconv ") for layer in network.layers)
    x = x.cuda()
    results = [network(x) for _ in range(2)]
    with torch.no_grad():
        expected = module.cuda().double()(x.double())
    assert (results[0] - expected).abs().max() <= SHARES[precision] * expected.abs().max()
    assert torch.equal(*results)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_numbers(case: Transposed) -> None:
    check(case.module(), case.input(), "float32")


@pytest.mark.parametrize("precision", SHARES)
@pytest.mark.parametrize(("kernel", "padding"), [(2, 0), (4, 1)])
def test_a_level_of_unet(kernel: int, padding: int, precision: str) -> None:
    check(level(64, kernel, padding), torch.randn(4, 3, 64, 48), precision)
