"""Default configurations: those of this checkout beside those of an earlier commit.

    python benchmarks/choices.py --base COMMIT -o choices.jsonl   # list them, which takes git and torch, but no GPU
    python benchmarks/choices.py choices.jsonl -o records.jsonl   # measure and compare them; the same command goes on
    python benchmarks/choices.py --base COMMIT --target llvm -o choices.jsonl   # those of this machine's CPU

Problems are those of suites and of layers of networks, for which dispatch also takes the template, and random ones of
each template, as `benchmarks/collect.py` draws them. Defaults are those of a target, by default a GPU of sm_90 whose
model is not named, by the rates of each checkout: tuning logs and a calibration are not read. Records
are a log as `benchmarks/collect.py` writes it, for `benchmarks/fit.py`; what it has already is not measured again. On a
shared machine both choices of a problem have to be measured in one run.

Each row of the comparison is a set of problems in one type: the number of its problems, the number of those whose
choices differ, and the new choice's time divided by the old one's: the geometric mean over all of the set, the least,
and the greatest. The problems that became slowest follow.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from math import inf
from pathlib import Path
from typing import Any

import msgspec
import tvm
from collect import algorithms_of, write_records
from defaults import Choice, Question
from script import options_of

from tvmconv.autotvm.task import ConvTask, extract_from_model, extract_from_suite
from tvmconv.calibration.fit import geometric
from tvmconv.calibration.problems import LARGE, SMALL, Size, random_problem
from tvmconv.calibration.trials import key_of, key_of_record, records_in
from tvmconv.checking.draws import Draw
from tvmconv.checking.suites import suite_names
from tvmconv.dispatch import algorithm_of
from tvmconv.dispatch.trial import MeasureInput
from tvmconv.network import import_model
from tvmconv.problem import DIRECTIONS, FORWARD, Problem
from tvmconv.schedules.space import Space
from tvmconv.targets import backend_of, resolve_target

ROOT = Path(__file__).parent.parent
"""The folder of the repository."""
NETWORKS = ["resnet50", "mobilenet_v2", "efficientnet_b0", "convnext_tiny", "regnet_y_400mf", "unet"]


@dataclass(frozen=True)
class Asked:
    """The problems that are asked for on a kind of machine."""

    batches: tuple[int, ...]
    """The batches of networks."""
    suite_batch: int | None
    """The batch of suites; None for their own ones."""
    types: dict[str, tuple[str, str]]
    """The dtype and the precision of a suite's problem, by the name of both."""
    size: Size
    """The limits of random problems."""


ON_GPU = Asked(
    (1, 32),
    None,
    {"float32": ("float32", "float32"), "tf32": ("float32", "tf32"), "float16": ("float16", "float32")},
    LARGE,
)
ON_CPU = Asked((1,), 1, {"float32": ("float32", "float32"), "bfloat16": ("bfloat16", "float32")}, SMALL)

WORST = 20
"""The number of problems that are listed with the greatest ratios."""


class Line(msgspec.Struct, frozen=True):
    """A problem of a set with the default of the base, and that of the checkout."""

    set: str
    target: str
    problem: str
    old: Choice
    new: Choice


class Chosen(ConvTask):
    """A task with an empty space: to list one takes seconds, and only numbers a record's configuration."""

    @cached_property
    def space(self) -> Space[Any]:
        return Space(None, None, {"none": ()}, {}, {})


def questions(
    suites: Sequence[str], networks: Sequence[str], algorithms: Sequence[str], count: int, target: tvm.target.Target
) -> Iterator[Question]:
    """Yield the problems of suites and networks, and a number of random ones of each algorithm, for a target."""
    from tvmconv.bench.networks.ahead import Case
    from tvmconv.bench.networks.models import NETWORKS as FUNCTIONS
    from tvmconv.bench.networks.models import SIZE, SIZES

    asked, text = ON_GPU if backend_of(target).on_gpu else ON_CPU, str(target)
    for suite in suites:
        for name, (dtype, precision) in asked.types.items():
            for direction in DIRECTIONS if suite.startswith("depthwise") else (FORWARD,):
                way = "" if direction == FORWARD else f" {direction}"
                how = {"dtype": dtype, "precision": precision, "direction": direction}
                for task in extract_from_suite(suite, target, asked.suite_batch, **how):
                    yield Question(f"{suite} {name}{way}", text, task.problem.to_json(), "auto")
    for network in networks:
        for batch in asked.batches:
            case = Case(network, FUNCTIONS[network], batch, SIZES.get(network, SIZE), None)
            model = import_model(case.module(), (case.images(batch),))
            for precision in asked.types:
                for task in extract_from_model(model, target, precision=precision):
                    yield Question(f"{network} batch {batch} {precision}", text, task.problem.to_json(), "auto")
    for algorithm in algorithms:
        for number in range(count):
            draw = Draw(f"choices {algorithm} {number}")
            if (problem := random_problem(draw, algorithm, target, asked.size)) is not None:
                yield Question(f"random {algorithm}", text, problem.to_json(), algorithm)


def answered(tree: Path, asked: Sequence[Question]) -> list[Choice]:
    """Return the answers of the package in a folder to questions."""
    command = [sys.executable, Path(__file__).with_name("defaults.py")]
    text = b"\n".join(map(msgspec.json.encode, asked))
    with tempfile.TemporaryDirectory() as empty:  # no rates of the user
        environment = {**os.environ, "PYTHONPATH": str(tree), "TVMCONV_CACHE_DIR": empty}
        run = subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True, env=environment)
    return [msgspec.json.decode(line, type=Choice) for line in run.stdout.splitlines()]


def lines(base: str, asked: Sequence[Question]) -> Iterator[Line]:
    """Yield the choices of a commit and of the checkout."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor() as pool:
        tree = Path(folder, "base")
        subprocess.run(["git", "worktree", "add", "--detach", tree, base], cwd=ROOT, check=True, stdout=sys.stderr)
        try:
            old, new = pool.map(answered, (tree, ROOT), (asked, asked))
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
    for question, before, after in zip(asked, old, new, strict=True):
        yield Line(question.set, question.target, question.problem, before, after)


def trial(line: Line, choice: Choice) -> MeasureInput:
    """Return the trial of a choice for the problem of a line."""
    problem, target = Problem.from_json(line.problem), resolve_target(line.target)
    task = Chosen(problem.workload, target, algorithm=algorithm_of(choice.template)).for_problem(problem)
    return MeasureInput(target, task, task.config(choice.knobs))


def trials(listed: Sequence[Line]) -> Iterator[MeasureInput]:
    """Yield the configurations to measure: both of each problem whose choices differ."""
    for line in listed:
        if line.old != line.new:
            yield from (trial(line, choice) for choice in (line.old, line.new))


def report(listed: Sequence[Line], records: Path) -> None:
    """Print the comparison of choices by their records."""
    costs = {key_of_record(record): min(record.costs, default=inf) for record in records_in(records)}
    sets, differing = defaultdict[str, list[float]](list), Counter[str]()
    slower, failed, missing = list[tuple[float, str]](), list[str](), 0
    for line in listed:
        old, new = (costs.get(key_of(trial(line, each))) for each in (line.old, line.new))
        text = f"{line.set}, {Problem.from_json(line.problem)}: {line.old} -> {line.new}"
        if line.old == line.new:
            sets[line.set].append(1.0)
        elif old is None or new is None or old == inf:
            missing += 1
        elif new == inf:
            failed.append(text)
        else:
            sets[line.set].append(new / old)
            differing[line.set] += 1
            slower.append((new / old, f"of {old * 1e6:.1f} us: {text}"))
    print(f"{'set':40} problems  differ    mean   least  greatest")
    every, differing["all"] = [ratio for each in sets.values() for ratio in each], differing.total()
    for name, ratios in {**sets, **({"all": every} if every else {})}.items():
        mean, least, greatest = geometric(ratios), min(ratios), max(ratios)
        print(f"{name:40} {len(ratios):8} {differing[name]:7}  {mean:6.3f}  {least:6.2f}  {greatest:8.2f}")
    print(f"{missing} others were not measured, or the old choice failed; the new choice failed for {len(failed)}")
    for text in failed:
        print(f"failed: {text}")
    for ratio, text in sorted(slower, reverse=True)[:WORST]:
        print(f"{ratio:.2f} {text}")


def main() -> None:
    parser = options_of(
        __doc__,
        choices=(),
        base="",
        target='{"kind": "cuda", "arch": "sm_90"}',
        suites=suite_names(),
        networks=NETWORKS,
        algorithms=[],
        problems=12,
        seconds=1e9,
    )
    options = parser.parse_args()
    if options.output is None or len(options.choices) != (0 if options.base else 1):
        parser.error("expected --base COMMIT -o FILE, or CHOICES -o FILE")
    if options.base:
        target = resolve_target(options.target)
        algorithms = options.algorithms or algorithms_of(target)
        asked = [*questions(options.suites, options.networks, algorithms, options.problems, target)]
        content = (msgspec.json.encode(line) + b"\n" for line in lines(options.base, asked))
        options.output.write_bytes(b"".join(content))
    else:
        listed = [msgspec.json.decode(line, type=Line) for line in Path(*options.choices).read_bytes().splitlines()]
        write_records(trials(listed), options.output, options.seconds)
        report(listed, options.output)


if __name__ == "__main__":
    main()
