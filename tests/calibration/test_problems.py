"""Random problems of CUDA's templates, and their trials."""

from __future__ import annotations

import gzip
import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tvmconv.calibration.problems import LARGE, SMALL, random_problem
from tvmconv.calibration.trials import key_of, keys_in, trials
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for, algorithms_on, template_named
from tvmconv.targets import resolve_target

SM_75, SM_90 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_75", "sm_90"))
RECORDS = Path(__file__).parents[2] / "benchmarks" / "kernels-h200.jsonl.gz"


@pytest.mark.parametrize("algorithm", [*algorithms_on(SM_90), "attention", "gate"])
def test_problems(algorithm: str) -> None:
    """Each template has problems that it takes, the same each time, and small ones."""
    problem = random_problem(Draw(algorithm), algorithm, SM_90, LARGE)
    assert problem == random_problem(Draw(algorithm), algorithm, SM_90, LARGE)
    assert problem is not None
    assert algorithm in algorithms_for(problem, SM_90)
    small = random_problem(Draw(algorithm), algorithm, SM_90, SMALL)
    assert small is not None
    assert small.workload.bytes_moved <= SMALL.max_bytes
    assert small.workload.flops <= SMALL.max_flops


@pytest.mark.parametrize("algorithm", ["matvec", "attention", "input_gradient_nhwc"])
def test_configurations(algorithm: str) -> None:
    """They are legal and differ, and the default comes first."""
    found = [*trials([algorithm], 1, 6, 0, SM_90, LARGE, 3)]
    own = [trial for trial in found if trial.task.name == f"cuda/{algorithm}"]
    template: Any = template_named(f"cuda/{algorithm}")
    assert own[0].config == template.default_config(own[0].task.problem, SM_90)
    assert len({trial.config for trial in own}) == len(own) == 6
    assert all(template.is_legal(trial.task.problem, trial.config, SM_90) for trial in own)
    assert [*trials([algorithm], 1, 6, 0, SM_90, LARGE, 0)] == own


def test_a_template_that_takes_no_problem_is_left_out() -> None:
    """Tensor cores of a T4 have no attention; other templates go on."""
    found = islice(trials(["attention", "input_gradient"], 10, 1, 0, SM_75, SMALL, 0), 3)
    assert [trial.task.name for trial in found] == ["cuda/input_gradient"] * 3


def test_a_log_has_the_keys_of_its_trials(tmp_path: Path) -> None:
    """Trials that a log has are found in it: the records of an H200 are those of problems that are drawn today."""
    log = tmp_path / "log.jsonl"
    assert keys_in(log) == set()
    (first,) = islice(trials(["attention"], 1, 1, 0, SM_90, LARGE, 0), 1)
    with gzip.open(RECORDS, "rt") as records:
        rows = [json.loads(line) for line in records if '"cuda/attention"' in line]
    for row in rows:
        row["input"][0] = str(first.target)
    log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert key_of(first) in keys_in(log)
