"""One kernel of attention on a real GPU, beside float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tvmconv
from tests.network.passes.attention_cases import Block, torch
from tvmconv.checking import verify


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
    assert [layer.kernel for layer in network.layers].count("tvmconv cuda/attention") == 2
    with torch.no_grad():
        expected = module.double()(*(each.double() for each in inputs)).float().numpy()
        module.float()
    results = [network(*(each.numpy() for each in inputs)) for _ in range(2)]
    (found,) = verify.compare({"y": np.asarray(results[0])}, {"y": expected}, {word})
    assert found.agrees
    assert found.ratio > RATIOS[word]
    np.testing.assert_array_equal(*results)
