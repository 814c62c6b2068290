"""ONNX's own tests against tvmconv: `python -m tests.onnx_conformance --jobs 16` runs all, and writes their page.

Each test is answered right, or refused by an error that names the node; a wrong answer and an error that is not
tvmconv's are failures. Tests run in processes of their own; the outcome of each is kept in the file that `--results`
names, and a run that was ended goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner, _normalize_tensor
from onnx.reference import ReferenceEvaluator

from tests.isolation import isolated
from tvmconv.integrations import onnx_backend
from tvmconv.problem.errors import InvalidArgumentError, TvmconvError

PAGE = Path(__file__).parent.parent / "docs" / "onnx-conformance.md"

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator")
"""The kinds of ONNX's tests: all but "real", which are networks of some hundred megabytes."""

SECONDS = 120.0
"""The seconds that a test may take, with the start of its process."""

RIGHT, REFUSED, WRONG, RAW = "right", "refused", "wrong", "raw"
"""The outcomes of a test; "raw" is an error that is not tvmconv's or does not name the node, or a crash."""


@cache
def cases() -> dict[str, Any]:
    """Return ONNX's tests by their names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the reference implementations, which it runs
        return {case.name: case for kind in KINDS for case in load_model_tests(kind=kind)}


def model_and_data(case: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """Return the model of a test, and its inputs with their outputs, which may be in files."""
    if case.model is not None:
        return case.model, [
            tuple([_normalize_tensor(each) for each in side] for side in data) for data in case.data_sets
        ]
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = [
        tuple([_tensor(file) for file in sorted(data.glob(f"{side}_*.pb"))] for side in ("input", "output"))
        for data in sorted(folder.glob("test_data_set_*"))
    ]
    return model, sets


def _tensor(path: Path) -> np.ndarray[Any, Any]:
    return onnx.numpy_helper.to_array(onnx.load_tensor(path))


ATOL = {"test_mish_expanded": 10 * 2**-23}
"""The absolute tolerance of a test whose nodes add 1 to numbers below its ULP and multiply the rest by up to 10."""

CONSTANTS = ", constants"
"""The suffix of a test whose model has all inputs but the first as constants, as exporters leave them."""


def names() -> list[str]:
    """Return the names of all tests, and once more, with `CONSTANTS`, of those that can have constants."""
    found = []
    for name, case in cases().items():
        found.append(name)
        if len(model_and_data(case)[0].graph.input) > 1:
            found.append(name + CONSTANTS)
    return found


def with_constants(model: onnx.ModelProto, inputs: list[Any]) -> onnx.ModelProto:
    """Return the model with all inputs but the first as constants, where these are tensors."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for value, array in zip(model.graph.input[1:], inputs[1:], strict=False):
        if isinstance(array, np.ndarray | np.generic):
            model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), value.name))
    # Old models have their constants among the inputs as well.
    made = {tensor.name for tensor in model.graph.initializer if model.ir_version > 3}
    kept = [value for value in model.graph.input if value.name not in made]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    return model


def operators(graph: onnx.GraphProto) -> set[str]:
    """Return the operators of a graph and of the graphs in it."""
    inside = [attribute.g for node in graph.node for attribute in node.attribute if attribute.HasField("g")]
    return {node.op_type for node in graph.node}.union(*map(operators, inside))


def difference(case: Any, outputs: Sequence[Any], expected: Sequence[Any]) -> str:
    """Describe how outputs differ from the expected ones; an empty text if they do not.

    As with bfloat16, float16 may be two ULPs off.
    """
    halves = all(each.dtype == np.float16 for each in (*outputs, *expected) if isinstance(each, np.ndarray))
    try:
        Runner.assert_similar_outputs(
            expected, outputs, max(case.rtol, 2**-9) if halves else case.rtol, ATOL.get(case.name, case.atol)
        )
    except (AssertionError, TypeError, AttributeError) as error:
        return str(error)
    return ""


def is_rounding(outputs: Sequence[Any], expected: Sequence[Any], evaluated: Sequence[Any] | None) -> bool:
    """Return whether outputs are at most twice as far from the expected ones as those of ONNX's own evaluator.

    Some tests expect results of higher precision than the digits that their nodes keep.
    """
    if evaluated is None or not len(outputs) == len(expected) == len(evaluated):
        return False
    for ours, wanted, theirs in zip(outputs, expected, evaluated, strict=True):
        if ours.dtype != wanted.dtype or ours.shape != wanted.shape or theirs.shape != wanted.shape:
            return False
        if not np.abs(ours - wanted).max(initial=0) <= 2 * np.abs(theirs - wanted).max(initial=0):
            return False
    return True


def evaluated(model: onnx.ModelProto, inputs: list[Any]) -> list[Any] | None:
    """Return the outputs of ONNX's evaluator for a model; None for nodes that it does not know."""
    names = [value.name for value in model.graph.input]
    try:
        return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=False))))
    except (NotImplementedError, RuntimeError, TypeError, ValueError, AttributeError):
        return None


def result(name: str) -> str:
    """Run a test; return its outcome and the reason for it as JSON."""
    case = cases()[name.removesuffix(CONSTANTS)]
    model, sets = model_and_data(case)
    if name.endswith(CONSTANTS):
        inputs, expected = sets[0]
        model = with_constants(model, inputs)
        sets = [(inputs[:1], expected)]
    outcome, why = RIGHT, ""
    try:
        prepared = onnx_backend.prepare(model)
        for inputs, expected in sets:
            outputs = prepared.run(inputs)
            why = difference(case, outputs, expected)
            if why and not is_rounding(outputs, expected, evaluated(model, inputs)):
                outcome = WRONG
                break
            why = ""
    except InvalidArgumentError as error:
        why = str(error)
        outcome = REFUSED if error.argument in {value.name for value in model.graph.input} else RAW
    except TvmconvError as error:
        outcome, why = (
            REFUSED if any(name.lower() in str(error).lower() for name in operators(model.graph)) else RAW,
            str(error),
        )
    except Exception as error:
        outcome, why = RAW, f"{type(error).__name__}: {error}"
    return json.dumps([name, outcome, why])


HEAD = """\
# ONNX's own tests

`tvmconv.integrations.onnx_backend` is a backend of ONNX (`onnx.backend.base`). These are the tests of onnx {version},
on the CPU: each is answered right, in dtype and shape as well, or refused by an error that names the node. {summary}.

Most models of these tests have all operands as inputs, where those of exporters have constants. So each is tried twice,
the second time with all inputs but the first as constants ("constants"). `python -m tests.onnx_conformance --jobs 16`
runs all of them and writes this page; `tests/network/frontends/test_onnx_conformance.py` runs a part and holds the page
to what it finds.

| test | as it is | constants |
| --- | --- | --- |
"""


def page(found: Mapping[str, Sequence[str]]) -> str:
    """Return the page of the documentation for all results by name."""
    counts = Counter(outcome for outcome, _ in found.values())
    summary = ", ".join(f"{counts[each]} {each}" for each in (RIGHT, REFUSED, WRONG, RAW))
    rows = [
        f"| {name} | {_cell(found.get(name))} | {_cell(found.get(name + CONSTANTS))} |\n" for name in sorted(cases())
    ]
    return HEAD.format(version=onnx.__version__, summary=summary) + "".join(rows)


def _cell(found: Sequence[str] | None) -> str:
    """Return "right", or the reason for a refusal in short; an empty text for a test that does not exist."""
    if found is None:
        return ""
    outcome, why = found
    reason = " ".join(re.sub(r"^the model cannot be imported: | What would help: .*", "", why, flags=re.S).split())
    return outcome if outcome == RIGHT else f"{outcome}: {reason[:120]}".replace("|", "/")


def read_page(text: str) -> dict[str, str]:
    """Return the outcomes on a page, by name."""
    listed = {}
    for name, plain, constants in re.findall(r"^\| (test_\w+) \| (.*?) \| (.*?) ?\|$", text, re.MULTILINE):
        listed[name] = plain.partition(":")[0]
        if constants:
            listed[name + CONSTANTS] = constants.partition(":")[0]
    return listed


def main() -> int:
    """Run the tests that have no result yet, print the failures, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--tests", default="", help="A regular expression; the page is written when all have run.")
    parser.add_argument("--results", type=Path, default=Path("onnx-conformance.jsonl"))
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    found = {name: tuple(rest) for name, *rest in map(json.loads, lines)}
    wanted = [name for name in names() if re.search(given.tests, name) and name not in found]
    with given.results.open("a") as file:
        for name, answer in isolated(import_module("tests.onnx_conformance").result, wanted, given.jobs, SECONDS):
            line = answer or json.dumps([name, RAW, "the process died or took too long"])
            file.write(line + "\n")
            file.flush()
            found[name] = tuple(json.loads(line)[1:])
    for name, (outcome, why) in found.items():
        if outcome in (WRONG, RAW):
            print(f"{outcome}: {name}: {' '.join(why.split())[:200]}")
    counts = Counter(outcome for outcome, _ in found.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if not given.tests:
        PAGE.write_text(page(found))
    return 1 if counts[WRONG] + counts[RAW] else 0


if __name__ == "__main__":
    sys.exit(main())
