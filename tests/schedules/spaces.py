"""Checks of a template's space of configurations that the tests of all templates share."""

from __future__ import annotations

from typing import Any


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


def check_whole_space(space: Any) -> None:
    """Assert that a `Space` begins with the default and has legal configurations, each once; seconds for CUDA."""
    assert space.configs[0] == space.default
    assert len(set(space.configs)) == len(space.configs) == len(space.index)
    assert [config for config in space.configs if space.violated(config)] == []
