"""The model that chooses default configurations of sparse CUDA kernels, against measurements on an H100."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from functools import cache, partial
from pathlib import Path
from statistics import geometric_mean

import pytest

from tests.shared.sparing import every
from tvmconv import ConvWorkload
from tvmconv.checking.suites import load_suite
from tvmconv.dispatch.registry import estimated_cycles
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.simt.direct import template as direct
from tvmconv.schedules.cuda.sparse import MAX_INSTRUCTIONS, Config
from tvmconv.schedules.cuda.sparse import template as sparse
from tvmconv.schedules.cuda.sparse.model import clocks, instructions
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import H100

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
DENSITY = 0.1
"""Share of non-zeros of what was measured."""

MEASURED = Path(__file__).parents[3] / "benchmarks"


@cache
def measured(batch: int) -> dict[str, dict[Config, float]]:
    """Return the microseconds of the configurations of each operator of the suite sparse-paper."""
    found = defaultdict[str, dict[Config, float]](dict)
    with gzip.open(MEASURED / f"sparse-h100-batch-{batch}.jsonl.gz", "rt") as lines:
        for line in map(json.loads, lines):
            if "us" in line and "best" not in line:
                found[line["op"]][Config(**line["config"])] = line["us"]
    return found


@pytest.mark.parametrize("batch", every(2, [64, 1]))
def test_choice_among_measured(batch: int) -> None:
    """The fastest by the model is nearly the fastest measured, which is in the space."""
    workloads, losses = load_suite("sparse-paper", "cuda", batch), []
    for name, times in measured(batch).items():
        workload = workloads[name]
        space, best = sparse.space(Problem(workload, 1 - DENSITY), SM_90), min(times, key=times.__getitem__)
        checks = (*space.heuristics.values(), *space.constraints.values())
        assert all(getattr(best, knob) in values for knob, values in space.knobs.items()), (name, best)
        assert all(holds(best) for holds in checks), (name, best)
        legal = [config for config in times if not space.violated(config)]
        chosen = min(legal, key=lambda config: clocks(workload, config, H100, DENSITY))
        losses.append(times[chosen] / times[best])
    assert geometric_mean(losses) < 1.05
    assert max(losses) < 1.15


@pytest.mark.parametrize("batch", every(2, [64, 1]))
def test_choice_between_sparse_and_dense(batch: int) -> None:
    """The models of both choose the faster one, or one of two that are nearly as fast.

    The dense kernels that were measured are those of `cuda/direct`.
    """
    workloads = load_suite("sparse-paper", "cuda", batch)
    for row in json.loads((MEASURED / f"sparse-h100-batch-{batch}.json").read_text())["rows"]:
        workload, times = workloads[row["name"]], row["times"]
        faster = times["tvmconv-dense"]["median"] / times["tvmconv"]["median"]
        problem = Problem(workload, 1 - DENSITY)
        if workload.is_depthwise:
            continue
        dense = partial(estimated_cycles, direct, Problem(workload), str(SM_90))
        pays = sparse.pays(problem, sparse.default_config(problem, SM_90), SM_90, 0, dense)
        assert (faster > 1 / 1.05) if pays else (faster < 1.05), row["name"]


@pytest.mark.parametrize("name", ["alexnet-conv3", "resnet-conv2"])
@pytest.mark.parametrize("density", [0.1, 0.3, 0.9, 1.0])
def test_no_block_is_too_much_for_compilers(name: str, density: float) -> None:
    workload = load_suite("sparse-paper", "cuda", 64)[name]
    config = sparse.default_config(Problem(workload, 1 - density), SM_90)
    assert instructions(workload, config, density) <= MAX_INSTRUCTIONS


@pytest.mark.parametrize("tiles", [2, 3, 4, 6, 7, 12])
def test_tiles_that_are_legal_can_be_scheduled(tiles: int) -> None:
    """The workload has 2 images with 3 rows of 4 tiles each."""
    workload = ConvWorkload.conv2d((2, 2, 6, 32), (4, 2, 3, 3))
    config = Config(4, 1, threads_y=2, threads_x=8, thread_y=1, thread_x=1, block_c=1, num_stages=1, tiles=tiles)
    broken = sparse.space(Problem(workload, 1 - DENSITY), SM_90).violated(config)
    assert broken == (["whole_blocks"] if tiles in (3, 6, 7) else [])
    if not broken:
        sparse.schedule(Problem(workload, 1 - DENSITY), config, SM_90)


@pytest.mark.parametrize(
    "workload",
    [
        ConvWorkload.conv2d((1, 5, 1, 2), (33, 5, 7, 7), stride=(1, 2), padding=(12, 8, 12, 9), dilation=(4, 3)),
        ConvWorkload.conv2d((1, 1, 2, 1), (7, 1, 7, 7), padding=(15, 6, 15, 6), dilation=(5, 2), scale=True),
    ],
    ids=str,
)
def test_few_outputs_of_a_large_window_have_a_warp(workload: ConvWorkload) -> None:
    """Fewer threads would each have more elements to stage than registers."""
    assert sparse.default_config(Problem(workload, 1 - DENSITY), SM_90).threads == 32
