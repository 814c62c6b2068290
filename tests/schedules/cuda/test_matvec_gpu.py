"""Linear layers of few rows on a real GPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

import tvmconv
from tests.schedules.cases import on_gpu
from tests.schedules.cases.matvec import CASES
from tvmconv.checking import verify
from tvmconv.problem.dtypes import FLOATS
from tvmconv.schedules.cuda.matvec import template as matvec
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing.configs import legal_configs

pytestmark = pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
TARGET = resolve_target("cuda")

check = partial(on_gpu.check, "matvec")


@pytest.mark.parametrize("name", CASES)
def test_configuration(name: str) -> None:
    check(*CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_default_configuration(name: str) -> None:
    """NaN and infinities are where the reference has them."""
    problem, _ = CASES[name]
    check(problem, None)
    if problem.workload.dtype in FLOATS:
        check(problem, None, nonfinite=True)


@pytest.mark.parametrize("name", CASES)
def test_random_configuration(name: str) -> None:
    problem, _ = CASES[name]
    check(problem, next(legal_configs(matvec.space(problem, TARGET), name)))


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
