"""Networks of linear layers of few rows on a real GPU."""

from __future__ import annotations

import pytest

import tvmconv
from tests.shared.torch_modules import check_on_gpu, torch


@pytest.mark.parametrize(("word", "least"), [("float32", 100), ("float16", 55), ("bfloat16", 38)])
def test_network_of_one_row(word: str, least: float) -> None:
    torch.manual_seed(7)
    layers = torch.nn.Linear(1000, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1024), torch.nn.SiLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 301)).eval()
    x = torch.randn(1, 1000)
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda", precision=word)
    assert {layer.kernel for layer in network.layers} == {"tvmconv cuda/matvec"}
    check_on_gpu(network, module, x, least=least)
