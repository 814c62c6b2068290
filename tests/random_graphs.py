"""Random ONNX graphs beside ONNX Runtime, with known and with open sizes, that fit and that do not.

`python -m tests.random_graphs --count 2000 --jobs 16` makes 2,000 graphs of each kind (see `KINDS`), each from a
number, and runs them. ONNX Runtime decides what fits: where it refuses sizes tvmconv has to refuse them too, and where
it computes, tvmconv computes the same or refuses by an error that says why. Outcomes are kept in the file that
`--results` names; a run that was ended goes on from there.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.isolation import isolated
from tests.random_nodes import REFUSALS, Maker, grow, session
from tvmconv.problem.errors import TvmconvError, UnsupportedModelError

KINDS = ("static", "batch", "images")
"""The kinds of graphs: with all sizes known, with an open batch, and with open images: height and
width, often the batch, and in one of six the channels."""

SECONDS = 120.0
"""The seconds that a graph may take, with the start of its process."""

ORDER = RIGHT, REFUSED, STRICT, UNSAFE, WRONG, RAW = "right", "refused", "strict", "unsafe", "wrong", "raw"
"""The outcomes of a graph, the worst last: it is computed as by ONNX Runtime; it is refused when it is imported;
sizes are refused that ONNX Runtime takes; sizes are taken that it refuses; a result differs; an error is not
tvmconv's, or the process dies or takes too long."""

FAILURES = (UNSAFE, WRONG, RAW)

LIMIT = "only supports"
"""The words of ONNX Runtime's refusal of a node that it has no code for, though it fits."""

TOLERANCE = 2e-4
"""The largest difference of results, relative to the largest number of the tensor: of float32 through ten nodes."""


def made(name: str) -> Maker:
    """Return the graph of a name: its kind, a colon, and the number that it is made from."""
    kind, number = name.split(":")
    rng = np.random.default_rng([KINDS.index(kind), int(number)])
    while True:
        maker = Maker(rng, _open_axes(kind, rng))
        grow(maker)
        try:
            session(maker.model())
        except REFUSALS:
            continue  # it takes each node alone, but not all of them
        return maker


def _open_axes(kind: str, rng: np.random.Generator) -> dict[int, str]:
    """Return the names of the open axes of images."""
    if kind == "static":
        return {}
    if kind == "batch":
        return {0: "batch"}
    axes = {0: "batch", 2: "height", 3: "width"}
    if rng.random() < 1 / 6:
        axes[1] = "channels"
    if rng.random() < 1 / 3:
        del axes[0]
    return axes


def sizes_to_try(maker: Maker) -> list[dict[str, int]]:
    """Return sets of sizes by name, the first one those that the graph was made with."""
    example = maker.sizes
    if not example:
        return [{}]
    rng, sets = maker.rng, [dict(example)]
    larger = {name: size for name, size in example.items() if name != "channels"}
    sets.append({**example, **{name: size + int(rng.integers(1, 4)) for name, size in larger.items()}})
    sets.append({**example, **{name: 2 * size for name, size in larger.items()}})
    sets.append({name: int(rng.integers(1, 2 * size + 2)) for name, size in example.items()})
    sets.append({name: int(rng.integers(1, 5)) for name in example})
    sets.append({**example, [*example][int(rng.integers(len(example)))]: 1})
    return sets


def result(name: str) -> str:
    """Make a graph, run it, and return its name, its outcome and the reason for it as JSON."""
    outcome, why = _outcome(made(name))
    return json.dumps([name, outcome, why])


def _outcome(maker: Maker) -> tuple[str, str]:
    model = maker.model()
    reference = session(model)
    try:
        network = tvmconv.build(tvmconv.import_model(model))
    except UnsupportedModelError as error:
        operators = {node.op_type for node in model.graph.node}
        return (REFUSED if any(each in str(error) for each in operators) else RAW), _line(error)
    except Exception as error:
        return RAW, f"when it is built: {_line(error)}"
    worst = RIGHT, ""
    for sizes in sizes_to_try(maker):
        outcome, why = _call(model, network, reference, maker.images(sizes))
        if ORDER.index(outcome) > ORDER.index(worst[0]):
            worst = outcome, f"{sizes}: {why}"
    return worst


def _call(model: onnx.ModelProto, network: Any, reference: Any, inputs: Mapping[str, Any]) -> tuple[str, str]:
    """Return the outcome of a call."""
    try:
        expected, refusal = reference.run(None, inputs), ""
    except REFUSALS as error:
        expected, refusal = [], _line(error)
    try:
        outputs = network(**inputs)
    except TvmconvError as error:
        return (RIGHT if refusal else STRICT), _line(error)
    except Exception as error:
        return RAW, _line(error)
    if refusal and LIMIT not in refusal:
        return UNSAFE, f"ONNX Runtime: {refusal}"
    found = [np.asarray(each) for each in (outputs if isinstance(outputs, tuple) else (outputs,))]
    why = [difference(*each) for each in zip(found, expected, strict=True)] if expected else [refusal] * len(found)
    if any(why):
        # ONNX Runtime takes another neighbour than the standard in some modes of Resize, and has no others.
        standard = _standard(model, inputs)
        if len(standard) == len(found):
            why = [text and difference(ours, each) for text, ours, each in zip(why, found, standard, strict=True)]
    return (WRONG if any(why) else RIGHT), "; ".join(filter(None, why))


def _standard(model: onnx.ModelProto, inputs: Mapping[str, Any]) -> Sequence[Any]:
    """Return the outputs of ONNX's own implementation; none where it fails."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return list(ReferenceEvaluator(model).run(None, dict(inputs)))
    except Exception:
        return []


def difference(ours: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> str:
    """Describe how a result differs from ONNX Runtime's; an empty text if it does not."""
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{ours.dtype} of shape {ours.shape} for {theirs.dtype} of shape {theirs.shape}"
    if not theirs.size:
        return ""
    if theirs.dtype.kind != "f":
        return "" if (ours == theirs).all() else f"{(ours != theirs).mean():.1%} of the elements differ"
    scale = max(float(np.abs(theirs).max()), 0.1)  # what normalization leaves of equal numbers is rounding
    worst = float(np.abs(ours.astype("float64") - theirs).max()) / scale
    return "" if worst <= TOLERANCE else f"a difference of {worst:.2g} of the largest number"


def _line(error: Exception) -> str:
    text = " ".join(re.sub(r"\x1b\[\S*?m", "", str(error)).split())
    return f"{type(error).__name__}: {text[:600]}"


def main() -> int:
    """Run the graphs that have no outcome yet, and print the failures and how many there are of each outcome."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--first", type=int, default=0, help="The first number.")
    parser.add_argument("--count", type=int, default=100, help="How many graphs of each kind.")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=Path("random-graphs.jsonl"))
    given = parser.parse_args()
    lines = given.results.read_text().splitlines() if given.results.exists() else []
    found = {name: tuple(rest) for name, *rest in map(json.loads, lines)}
    numbers = range(given.first, given.first + given.count)
    wanted = [f"{kind}:{number}" for number in numbers for kind in given.kinds]
    with given.results.open("a") as file:
        waiting = [name for name in wanted if name not in found]
        for name, answer in isolated(import_module("tests.random_graphs").result, waiting, given.jobs, SECONDS):
            line = answer or json.dumps([name, RAW, "the process died or took too long"])
            file.write(line + "\n")
            file.flush()
            found[name] = tuple(json.loads(line)[1:])
    for name in wanted:
        outcome, why = found[name]
        if outcome != RIGHT:
            print(f"{outcome}: {name}: {why[:300]}")
    for kind in given.kinds:
        counts = Counter(found[name][0] for name in wanted if name.startswith(f"{kind}:"))
        print(f"{kind}: " + ", ".join(f"{counts[each]} {each}" for each in ORDER))
    return 1 if any(found[name][0] in FAILURES for name in wanted) else 0


if __name__ == "__main__":
    sys.exit(main())
