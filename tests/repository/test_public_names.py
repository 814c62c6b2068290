"""The docstrings of the public names: that each has one, what it says of arrays, and that its examples run."""

from __future__ import annotations

import doctest
import inspect
import re
import runpy
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("without_torch", "one_round")

REFERENCE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "reference.py"))
"""The names in the script of `make docs`."""

ARRAYS = {"x", "weight", "w"}
"""The first parameters of functions that take arrays."""

WITH_EXAMPLE = (
    *("tvmconv.ConvWorkload", "tvmconv.build", "tvmconv.compile", "tvmconv.conv2d", "tvmconv.depthwise"),
    *("tvmconv.import_model", "tvmconv.load", "tvmconv.sparse_conv2d"),
    *("tvmconv.autotvm.XGBTuner", "tvmconv.autotvm.apply_history_best", "tvmconv.autotvm.create"),
    *("tvmconv.nn.DepthwiseConv1d", "tvmconv.nn.DepthwiseConv2d", "tvmconv.nn.DepthwiseConv2dSame"),
    *("tvmconv.nn.causal_conv1d_fn", "tvmconv.nn.replace"),
)
"""The names that users meet first."""


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield the public objects of a module by their names: those in `__all__`, or all that it defines, and theirs."""
    defined = [name for name, each in vars(module).items() if getattr(each, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", [name for name in defined if not name.startswith("_")]):
        each = getattr(module, name)
        yield f"{module.__name__}.{name}", each
        if isinstance(each, ModuleType):
            yield from public(each)


NAMES = dict(pair for name in REFERENCE["MODULES"] for pair in public(import_module(name)))
"""The public objects by their names."""


def calls() -> Iterator[tuple[str, Any]]:
    """Yield the functions whose first parameter is an array, `__call__` of public classes among them."""
    for name, each in NAMES.items():
        function = each.__call__ if inspect.isclass(each) and "__call__" in vars(each) else each
        if inspect.isfunction(function):
            parameters = [parameter for parameter in inspect.signature(function).parameters if parameter != "self"]
            if parameters and parameters[0] in ARRAYS:
                yield name, function


CALLS = dict(calls())


def test_every_public_name_has_a_docstring() -> None:
    assert len(NAMES) > 80
    described = {name: each for name, each in NAMES.items() if inspect.isclass(each) or inspect.isroutine(each)}
    assert [name for name, each in described.items() if not inspect.getdoc(each)] == []


@pytest.mark.parametrize("name", CALLS)
def test_functions_on_arrays_tell_shapes_and_errors(name: str) -> None:
    text = inspect.getdoc(CALLS[name]) or ""
    assert re.search(r"\([A-Z]\w*, ", text), "a shape"
    assert re.search(r"\bRaises\b[^.]*`\w+Error`", text), "an error"


def test_all_ways_to_convolve_are_among_them() -> None:
    assert {"tvmconv.depthwise", "tvmconv.conv2d", "tvmconv.sparse_conv2d", "tvmconv.Operator"} <= CALLS.keys()
    assert {"tvmconv.SparseConv2d", "tvmconv.SparseOperator", "tvmconv.nn.causal_conv1d_update"} <= CALLS.keys()
    assert "tvmconv.nn.functional.depthwise_conv2d_same" in CALLS


def test_names_that_users_meet_first_have_examples() -> None:
    assert [name for name in WITH_EXAMPLE if ">>>" not in (inspect.getdoc(NAMES[name]) or "")] == []


def with_examples() -> list[str]:
    """Return the names whose docstrings have examples, one of each object."""
    names = {id(each): name for name, each in NAMES.items() if ">>>" in (inspect.getdoc(each) or "")}
    return list(names.values())


def test_most_names_have_examples() -> None:
    assert len(with_examples()) >= 45


@pytest.mark.parametrize("name", with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = inspect.getdoc(NAMES[name])
    assert text is not None
    example = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
    told: list[str] = []
    doctest.DocTestRunner().run(example, out=told.append)
    assert told == [], "".join(told)
