"""ONNX's conformance tests of convolutions, run against tvmconv.

`python tests/test_onnx_backend.py` writes their page, docs/onnx-conformance.md.
"""

from __future__ import annotations

import re
import unittest
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.backend.test.runner import Runner

from tvmconv import onnx_backend
from tvmconv.errors import UnsupportedModelError
from tvmconv.onnx_backend import TvmconvBackend

PAGE = Path(__file__).parent.parent / "docs" / "onnx-conformance.md"
HEAD = """\
# ONNX's conformance tests of convolutions

`tvmconv.onnx_backend` is a backend of ONNX (`onnx.backend.base`). These are all tests of onnx {version} with "conv" in
their name, on the CPU: {passed} pass, {refused} models are refused. `tests/test_onnx_backend.py` runs them, and holds
this page to what it finds.

| test | result |
| --- | --- |
"""
PASSES = "passes"


def conformance_tests() -> dict[str, unittest.TestCase]:
    """Each test of ONNX's that is about convolutions, by its name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference implementations, which it runs
        cases = Runner(TvmconvBackend, __name__).test_cases.values()
    names = {name: case for case in cases for name in vars(case) if re.search(r"(?i)^test_.*conv.*_cpu$", name)}
    return {name: case(name) for name, case in names.items()}


def result(test: unittest.TestCase) -> str:
    """What becomes of a test: that it passes, or why its model is refused; it fails for anything else."""
    try:
        getattr(test, test._testMethodName)()
    except UnsupportedModelError as error:
        return str(error)
    return PASSES


def listed() -> dict[str, str]:
    return dict(re.findall(r"^\| (test_\w+) \| (.*) \|$", PAGE.read_text(), re.MULTILINE))


@pytest.fixture(scope="session")
def tests() -> dict[str, unittest.TestCase]:
    return conformance_tests()


@pytest.mark.parametrize("name", listed())
def test_conformance(name: str, tests: dict[str, unittest.TestCase]) -> None:
    assert result(tests[name]) == listed()[name]


def test_page_is_whole(tests: dict[str, unittest.TestCase]) -> None:
    assert PAGE.read_text() == page({name: listed().get(name, "") for name in tests})


def test_convolutions_that_relax_has_pass() -> None:
    """Nothing but operators that Relax has not is refused."""
    refused = {reason for reason in listed().values() if reason != PASSES}
    assert {re.search(r"imported: (\w+) ", reason)[1] for reason in refused} == {
        "CausalConvWithState", "ConvInteger", "DeformConv", "QLinearConv"
    }  # fmt: skip
    assert all("Relax does not have it. What would help: " in reason for reason in refused)


def page(results: dict[str, str]) -> str:
    passed = sum(found == PASSES for found in results.values())
    head = HEAD.format(version=onnx.__version__, passed=passed, refused=len(results) - passed)
    return head + "".join(f"| {name} | {found} |\n" for name, found in sorted(results.items()))


def relu(shape: tuple[int, ...]) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_kinds_of_inputs() -> None:
    x = np.array([[-1, 2]], "float32")
    prepared = onnx_backend.prepare(relu((1, 2)))
    for inputs in (x, [x], {"x": x}):
        (y,) = prepared.run(inputs)
        assert y.tolist() == [[0, 2]]
    assert onnx_backend.run_model(relu((1, 2)), [x])[0].tolist() == [[0, 2]]


def test_one_node() -> None:
    clip = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (y,) = onnx_backend.run_node(clip, [np.array([-1, 2, 9], "float32"), np.float32(3)])
    assert y.tolist() == [-1, 2, 3]
    (y,) = onnx_backend.run_node(helper.make_node("Relu", ["x"], ["y"]), [np.float32([-1, 2])], opset_version=14)
    assert y.tolist() == [0, 2]


def test_what_it_supports() -> None:
    assert onnx_backend.supports_device("CPU")
    assert onnx_backend.is_compatible(relu((1, 2)))
    unknown = relu((1, 2))
    unknown.graph.node[0].op_type = "Swirl"
    assert not onnx_backend.is_compatible(unknown)


if __name__ == "__main__":
    PAGE.write_text(page({name: result(test) for name, test in conformance_tests().items()}))
