"""Answers questions for default configurations, which stand on lines of the standard input, for `choices.py`.

It imports little, so that the packages of older commits can be asked, too.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from tvmconv.checking.draws import Draw
from tvmconv.dispatch.registry import default_config, template_for, template_name
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target

NEARLY = 1.2
"""The largest estimate that counts as nearly as fast, divided by the estimate of the default."""


class Question(msgspec.Struct, frozen=True):
    """A problem of a set, whose default is asked for."""

    set: str
    """The name of the set with its type, such as "linear-networks float16"."""
    target: str
    """The target, as text."""
    problem: str
    """The problem as JSON."""
    algorithm: str
    """The algorithm that solves it, or "auto"."""
    near: int = 0
    """The most configurations that are nearly as fast, which are listed beside the default."""


class Choice(msgspec.Struct, frozen=True):
    """A configuration of a template."""

    template: str
    knobs: dict[str, Any]


def answers(question: Question) -> list[Choice]:
    """Return the default for a problem, and configurations that should be nearly as fast."""
    target, problem = resolve_target(question.target), Problem.from_json(question.problem)
    template: Any = template_for(problem, target, question.algorithm)
    found = [default_config(template, problem, str(target))]
    if question.near:
        bound = NEARLY * template.estimate(problem, found[0], target)
        legal = template.legal(template.candidates(problem, target), problem, target)
        others = [config for config in legal if template.estimate(problem, config, target) <= bound]
        draw = Draw(question.problem)
        found += [draw.of(others) for _ in range(question.near)] if others else []
    return [Choice(template_name(template), msgspec.to_builtins(config)) for config in dict.fromkeys(found)]


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(msgspec.json.encode(answers(msgspec.json.decode(line, type=Question))).decode(), flush=True)
