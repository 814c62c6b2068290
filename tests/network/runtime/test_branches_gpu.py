"""Branches of networks on a real GPU: sizes that do not fit the branch which is chosen are refused."""

from __future__ import annotations

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.network.runtime.branch_cases import DIFFERENT, choosing
from tvmconv.problem.errors import InvalidArgumentError


@pytest.mark.filterwarnings("ignore:.*on TVM's own loops")
@pytest.mark.parametrize("name", ["reshape", "channels"])
def test_sizes_fit_the_branch_that_runs(name: str) -> None:
    case = DIFFERENT[name]
    model = choosing(case.shape, case.then_branch, case.else_branch, **case.constants)
    network = tvmconv.build(model, "cuda")
    for flag, shapes in case.fitting.items():
        for shape in 3 * shapes:  # sizes that come again may be in a CUDA graph
            x = np.random.default_rng(2).standard_normal(shape).astype("float32")
            (expected,) = ReferenceEvaluator(model).run(None, {"x": x, "flag": np.array(flag)})
            np.testing.assert_allclose(network(x, np.array(flag)), expected, rtol=1e-5, atol=1e-5)
            if shape not in case.fitting[not flag]:
                with pytest.raises(InvalidArgumentError, match="expected sizes for which"):
                    network(x, np.array(not flag))
