"""The default configuration of depthwise convolutions on CUDA, by rules and by a model of the time of tiles."""

from pathlib import Path
from statistics import geometric_mean

import pytest

from tests.emulated.twins_and_cubins import SM_90
from tvmconv.bench.tuning.defaults import random_workloads
from tvmconv.dispatch.record import load_from_file
from tvmconv.dispatch.trial import Status
from tvmconv.problem import Problem
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.cuda.depthwise import template as depthwise
from tvmconv.schedules.cuda.depthwise.clocks import clocks
from tvmconv.schedules.cuda.depthwise.default import MARGIN
from tvmconv.schedules.cuda.depthwise.tiles import LEAST, Config
from tvmconv.targets.devices import H100

LOG = Path(__file__).parents[3] / "benchmarks" / "defaults-h100.jsonl.gz"

FEW = Problem(ConvWorkload.depthwise((4, 9, 119, 59), (9, 1, 6, 6), stride=3, dilation=2))
"""A convolution with too few outputs for a GPU, of which the usual configuration gives each thread four."""


@pytest.mark.parametrize("shape", [(32, 96, 112, 112), (32, 144, 56, 56), (32, 960, 7, 7)], ids=str)
def test_common_layers_have_the_usual_configuration(shape: tuple[int, int, int, int]) -> None:
    problem = Problem(ConvWorkload.depthwise(shape, (shape[1], 1, 3, 3), padding=1))
    assert depthwise.default_config(problem, SM_90) == depthwise.usual_config(problem, SM_90)


def test_a_much_faster_candidate_takes_its_place() -> None:
    default, usual = depthwise.default_config(FEW, SM_90), depthwise.usual_config(FEW, SM_90)
    assert clocks(FEW.workload, default, H100) * MARGIN < clocks(FEW.workload, usual, H100)
    assert default.outputs < usual.outputs
    assert depthwise.space(FEW, SM_90).violated(default) == []


def test_open_planes_have_the_usual_configuration() -> None:
    problem = Problem(FEW.workload, open_sizes=("height", "width"))
    assert depthwise.default_config(problem, SM_90) == depthwise.usual_config(problem, SM_90)


def test_defaults_are_near_the_best_that_was_measured() -> None:
    """The default is within a fifth of the fastest in the log, in the mean of the workloads whose default it has.

    The model was fitted to this log: the test tells when it, or the rules, change for the worse.
    """
    costs: dict[Problem, dict[Config, float]] = {}
    for record in load_from_file(LOG).records:
        if record.status is Status.OK and isinstance(record.problem, Problem):
            of_problem = costs.setdefault(record.problem, {})
            config = Config(**record.knobs)
            of_problem[config] = min(record.cost, of_problem.get(config, record.cost))
    times = []
    for workload in random_workloads(100, seed=0):
        measured = costs[Problem(workload)]
        if (cost := measured.get(depthwise.default_config(Problem(workload), SM_90))) is not None:
            times.append(cost / min(measured.values()))
    assert len(times) >= 90
    assert geometric_mean(times) < 1.2


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
def test_the_model_tells_the_faster_of_two(better: dict[str, int | bool], worse: dict[str, int | bool]) -> None:
    workload = ConvWorkload.depthwise((32, 64, 64, 64), (64, 1, 5, 5), padding=2)
    assert clocks(workload, tile(**better), H100) < clocks(workload, tile(**worse), H100)


def test_words_of_a_bank_follow_each_other() -> None:
    """Threads that read every other word of shared memory take longer than those that read neighbouring ones."""
    plain, strided = (
        ConvWorkload.depthwise((8, 64, 31 * stride + 5, 31 * stride + 5), (64, 1, 5, 5), stride=stride, padding=0)
        for stride in (1, 2)
    )
    assert plain.output_shape == strided.output_shape
    times = [clocks(each, tile(shared_input=True), H100) for each in (plain, strided)]
    assert times[0] < times[1]
