"""Templates of one's own on a real GPU: the example's softmax, and the convolution of AutoTVM's tutorial."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvmconv import autotvm
from tvmconv.autotvm.measure import MeasureInput, Status
from tvmconv.autotvm.templates import TemplateTask, create_task

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["softmax", "conv2d"])
def task(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TemplateTask:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "tutorials"))
    import softmax_template  # noqa: F401 (these define the templates)
    import tune_conv2d_cuda  # noqa: F401

    if request.param == "softmax":
        return create_task("example/softmax", (37, 1024), "cuda")
    return create_task("tutorial/conv2d_no_batching", (1, 7, 7, 16, 8, 3, 3, (1, 1), (1, 1)), "cuda")


def test_kernels_are_right(task: TemplateTask) -> None:
    configs = task.space.configs
    for config in configs[:: -(-len(configs) // 12)]:
        threads = [entity.size[-2] for entity in config.values.values() if entity.KIND == "sp"][:3]
        if task.name == "example/softmax" or threads[0] * threads[1] * threads[2] <= 1024:
            task.check(config)


def test_trials_are_measured(task: TemplateTask) -> None:
    option = autotvm.measure_option(autotvm.LocalBuilder(n_parallel=2), autotvm.LocalRunner(repeat=3))
    trials = [MeasureInput(task.target, task, task.space.configs[index]) for index in (0, 3)]
    results = autotvm.measure.create_measure_batch(task, option)(trials)
    option.close()
    assert [result.status for result in results] == [Status.OK, Status.OK], results
    assert all(0 < result.cost < 0.01 for result in results)
