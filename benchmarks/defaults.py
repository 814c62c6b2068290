"""Answers questions for default configurations, which stand on lines of the standard input, for `choices.py`.

It imports little, so that the packages of older commits can be asked, too.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from tvmconv.dispatch.registry import default_config, template_for, template_name
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target


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


class Choice(msgspec.Struct, frozen=True):
    """A configuration of a template."""

    template: str
    knobs: dict[str, Any]


def answer(question: Question) -> Choice:
    """Return the default for a problem."""
    target, problem = resolve_target(question.target), Problem.from_json(question.problem)
    template = template_for(problem, target, question.algorithm)
    config = default_config(template, problem, str(target))
    return Choice(template_name(template), msgspec.to_builtins(config))


if __name__ == "__main__":
    for line in sys.stdin.buffer:
        print(msgspec.json.encode(answer(msgspec.json.decode(line, type=Question))).decode(), flush=True)
