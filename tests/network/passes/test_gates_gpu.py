"""Gates of squeeze and excitation on a real GPU, beside float64."""

from __future__ import annotations

import pytest

import tvmconv
from tests.network.passes.gate_cases import CASES, torch


@pytest.mark.parametrize("batch", [1, 3, 200])
@pytest.mark.parametrize("word", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_numbers(name: str, word: str, batch: int) -> None:
    """They are those of float64, and twice the same."""
    case = CASES[name]._replace(batch=batch)
    network = tvmconv.build(tvmconv.import_model(case.module, (case.x,)), "cuda", precision=word)
    x = case.x.cuda()
    results = [network(x) for _ in range(2)]
    with torch.no_grad():
        expected = case.module.cuda().double()(x.double())
    share = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[word]
    assert (results[0] - expected).abs().max() <= share * expected.abs().max()
    assert torch.equal(*results)


def test_any_batch() -> None:
    case = CASES["efficientnet"]
    sizes = {0: torch.export.Dim("n", min=1, max=500)}
    program = torch.export.export(case.module, (case.x,), dynamic_shapes=(sizes,))
    network = tvmconv.build(tvmconv.import_model(program), "cuda")
    assert [layer.kernel for layer in network.layers] == ["tvmconv cuda/gate"] * 2
    for batch in (1, 7, 300):
        x = case._replace(batch=batch).x.cuda()
        with torch.no_grad():
            expected = case.module.cuda().double()(x.double())
        assert (network(x) - expected).abs().max() <= 1e-6 * expected.abs().max()
