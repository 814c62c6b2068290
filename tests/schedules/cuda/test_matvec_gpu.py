"""Networks of linear layers of few rows on a real GPU."""

from __future__ import annotations

import numpy as np
import pytest

import tvmconv
from tvmconv.checking import verify
from tvmconv.targets import has_gpu

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")


@pytest.mark.parametrize(("word", "least"), [("float32", 100), ("float16", 55), ("bfloat16", 38)])
def test_network_of_one_row(word: str, least: float) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(7)
    layers = torch.nn.Linear(1000, 512), torch.nn.ReLU(), torch.nn.Linear(512, 1024), torch.nn.SiLU()
    module = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 301)).eval()
    x = torch.randn(1, 1000)
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda", precision=word)
    assert {layer.kernel for layer in network.layers} == {"tvmconv cuda/matvec"}
    with torch.no_grad():
        expected = module.double()(x.double()).float().numpy()
    (found,) = verify.compare({"y": np.asarray(network(x.numpy()))}, {"y": expected}, network.multiplied)
    assert found.agrees
    assert found.ratio > least
