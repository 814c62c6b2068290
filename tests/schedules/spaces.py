"""Checks of a template's space of configurations that the tests of all templates share."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tvmconv.dispatch import algorithms_for, template_for
from tvmconv.errors import InvalidArgumentError
from tvmconv.problem import Problem


def check_space(space: Any, default: Any) -> None:
    """Assert that a `Space` has the default configuration, a legal one, and knobs of distinct, well-formed values.

    The product of the knobs' values, less those that the constraints forbid, is the space; `check_whole_space` looks at
    all of it.
    """
    assert space.default == default
    assert space.violated(default) == []
    for name, values in space.knobs.items():
        assert len(set(values)) == len(values), name
        least = getattr(space.least, name)
        assert all(type(value) is type(least) and value >= least for value in values), name


def check_template(template: Any, problem: Problem, target: tvm.target.Target) -> None:
    """Assert that the space, the features and the ablations of a template's default configuration are legal."""
    default, space = template.default_config(problem, target), template.space(problem, target)
    check_space(space, default)
    assert all(value > 0 for value in template.features(problem, default, target).values())
    for without in template.ablations(default).values():
        assert space.violated(without) == []


def check_refused(algorithm: str, problem: Problem, target: tvm.target.Target, why: str) -> None:
    """Assert that a template of CUDA does not take a problem, and says why, by a pattern, where it is asked for."""
    assert algorithm not in algorithms_for(problem, target)
    with pytest.raises(InvalidArgumentError, match=f"cuda/{algorithm} .*{why}"):
        template_for(problem, target, algorithm)


def check_whole_space(space: Any) -> None:
    """Assert that a `Space` begins with the default and has legal configurations, each once; seconds for CUDA."""
    assert space.configs[0] == space.default
    assert len(set(space.configs)) == len(space.configs) == len(space.index)
    assert [config for config in space.configs if space.violated(config)] == []
