"""The default configuration of depthwise convolutions on CUDA, by the work of its tiles."""

from pathlib import Path
from statistics import geometric_mean

import pytest

from tests.emulated.twins_and_cubins import SM_90
from tvmconv.dispatch.record import load_from_file
from tvmconv.dispatch.trial import Status
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.cuda.depthwise import template as depthwise
from tvmconv.schedules.cuda.depthwise.tiles import LEAST, Config

LOG = Path(__file__).parents[3] / "benchmarks" / "defaults-h100.jsonl.gz"

FEW = Problem(ConvWorkload.depthwise((4, 9, 119, 59), (9, 1, 6, 6), stride=3, dilation=2))
"""A convolution with too few outputs for a GPU."""


def test_few_outputs_are_of_many_threads() -> None:
    default = depthwise.default_config(FEW, SM_90)
    assert default.outputs <= 2
    assert depthwise.space(FEW, SM_90).violated(default) == []


@pytest.mark.parametrize("sizes", [("height",), ("width",), ("height", "width")])
def test_the_default_of_open_planes_wastes_little_on_other_planes(sizes: tuple[str, ...]) -> None:
    """A tile that divides the plane that the default is chosen for is not the best for those of any size."""
    workload = ConvWorkload.depthwise((8, 96, 56, 56), (96, 1, 3, 3), padding=1)
    known, anywhere = (
        depthwise.default_config(problem, SM_90) for problem in (Problem(workload), Problem(workload, open_sizes=sizes))
    )
    of_sizes = Problem(workload, open_sizes=sizes)
    assert depthwise.is_legal(of_sizes, anywhere, SM_90)
    assert not depthwise.is_legal(of_sizes, known, SM_90) or (
        depthwise.estimate(of_sizes, anywhere, SM_90) <= depthwise.estimate(of_sizes, known, SM_90)
    )


def test_windows_too_large_to_unroll_are_in_loops() -> None:
    problem = Problem(ConvWorkload.depthwise((1, 8, 80, 80), (8, 1, 65, 65), padding=32))
    assert depthwise.default_config(problem, SM_90).unroll < 2


def test_defaults_are_near_the_best_that_was_measured() -> None:
    """Of the measured configurations that the default may be, the one with the least estimate is near the fastest.

    The model was fitted to this log: the test tells when it, or the counts, change for the worse.
    """
    costs: dict[Problem, dict[Config, float]] = {}
    for record in load_from_file(LOG).records:
        if record.status is Status.OK and isinstance(record.problem, Problem):
            of_problem = costs.setdefault(record.problem, {})
            config = Config(**record.knobs)
            of_problem[config] = min(record.cost, of_problem.get(config, record.cost))
    times = []
    assert len(costs) == 100
    for problem, measured in costs.items():
        chosen = min(
            (config for config in measured if depthwise.is_legal(problem, config, SM_90)),
            key=lambda config: depthwise.estimate(problem, config, SM_90),
        )
        times.append(measured[chosen] / min(measured.values()))
    assert geometric_mean(times) < 1.15


def tile(**knobs: int | bool) -> Config:
    return Config(**{**vars(LEAST), "threads_x": 32, "threads_y": 4, "unroll": 2, **knobs})


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (
            {"thread_x": 4, "store": 4, "threads_x": 16, "threads_y": 8},
            {"thread_x": 4, "threads_x": 16, "threads_y": 8},
        ),
        ({"shared_input": True, "thread_y": 2}, {"shared_input": True, "thread_y": 2, "threads_y": 1}),
        ({"threads_x": 32}, {"threads_x": 33}),  # a second warp that is nearly empty
    ],
    ids=["vectors", "threads", "warps"],
)
def test_the_estimate_tells_the_faster_of_two(better: dict[str, int | bool], worse: dict[str, int | bool]) -> None:
    problem = Problem(ConvWorkload.depthwise((32, 64, 64, 64), (64, 1, 5, 5), padding=2))
    estimates = [depthwise.estimate(problem, tile(**knobs), SM_90) for knobs in (better, worse)]
    assert estimates[0] < estimates[1]


def test_words_of_a_bank_follow_each_other() -> None:
    """Threads that read every other word of shared memory access it more often than those with neighbouring ones."""
    plain, strided = (
        Problem(ConvWorkload.depthwise((8, 64, 31 * n + 5, 31 * n + 5), (64, 1, 5, 5), stride=n, padding=0))
        for n in (1, 2)
    )
    assert plain.workload.output_shape == strided.workload.output_shape
    accesses = [
        depthwise.counts(each, tile(shared_input=True, shared_filter=True), SM_90).accessed for each in (plain, strided)
    ]
    assert accesses[1] > 1.5 * accesses[0]
