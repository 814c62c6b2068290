"""The example of a template for convolutions, without a GPU: numbers, barriers, machine code, and what it prints."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from tests.emulated.twins_and_cubins import SM_90, compiled, emulated_runs, run_twin
from tests.schedules.spaces import check_space, check_whole_space
from tvmconv import ConvWorkload, dispatch
from tvmconv.problem import Problem
from tvmconv.targets import has_gpu
from tvmconv.testing.configs import legal_configs

pytestmark = pytest.mark.usefixtures("without_torch")

FOLDER = Path(__file__).parents[2] / "examples"
by_example = pytest.mark.parametrize("number", [0, 1])


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the module of the example, with its template registered."""
    monkeypatch.syspath_prepend(str(FOLDER))
    found = import_module("convolution_template")
    dispatch.register("cuda/vthreads", found.VirtualThreads())
    yield found
    dispatch.unregister("cuda/vthreads")


@by_example
def test_numbers(module: Any, number: int) -> None:
    """Of the default configuration, and of one that is drawn."""
    problem = module.VirtualThreads.examples[number]
    space = module.VirtualThreads().space(problem, SM_90)
    for config in (None, next(legal_configs(space, "vthreads"))):
        run_twin("vthreads", problem, config)


@by_example
def test_threads_wait_for_each_other(module: Any, number: int) -> None:
    """A block has the shared memory that the template tells."""
    template, problem = module.VirtualThreads(), module.VirtualThreads.examples[number]
    (run,) = emulated_runs("vthreads", problem, None)
    assert run.shared_bytes == template.shared_bytes(problem, template.default_config(problem, SM_90))


def test_machine_code_of_level_4(module: Any) -> None:
    """Its numbers are a configuration of the space, whose kernel spills nothing."""
    problem, config = Problem(module.WORKLOAD), module.Config(2, 2, 8, 4, 7, 8)
    assert config in module.VirtualThreads().space(problem, SM_90)
    compiled("vthreads", problem, config, SM_90)


def test_space(module: Any) -> None:
    template, problem = module.VirtualThreads(), Problem(module.WORKLOAD)
    space = template.space(problem, SM_90)
    check_space(space, space.default)
    check_whole_space(space)
    assert {name: space.violated(config) for name, config in template.ablations(space.default).items()} == {
        "virtual threads": []
    }
    assert {"clocks", "threads", "blocks", "outputs"} <= template.features(problem, space.default, SM_90).keys()


def test_choice(module: Any) -> None:
    """Dispatch asks it of the problems that it takes."""
    offered = dispatch.algorithms_for(Problem(module.WORKLOAD, precision="strict"), SM_90)
    assert offered == ("direct", "im2win", "vthreads")
    grouped = ConvWorkload.conv2d((1, 8, 9, 9), (8, 4, 3, 3), groups=2)
    large = ConvWorkload.conv2d((1, 8, 40, 40), (8, 8, 31, 31))
    for workload in (grouped, large):
        assert "vthreads" not in dispatch.algorithms_for(Problem(workload), SM_90)


@pytest.mark.skipif(has_gpu(), reason="it checks serial twins where there is no GPU")
def test_script() -> None:
    command = [sys.executable, str(FOLDER / "convolution_template.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    *estimates, first, second, config, resources = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in estimates] == ["cuda/direct", "cuda/im2win", "cuda/vthreads"]
    assert first.startswith("right: conv2d ")
    assert second.startswith("right: conv2d ")
    assert config.startswith("Config(vthreads_k=")
    assert ", 0 bytes spilled, " in resources
