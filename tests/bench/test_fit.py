"""The scripts that collect records and fit the model of a GPU to them, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest

from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Status
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for, algorithms_on, template_named
from tvmconv.dispatch.record import Record
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.model import clocks
from tvmconv.targets import DeviceFacts, cuda, resolve_target
from tvmconv.targets.devices import H100
from tvmconv.targets.rates import Factors, Table, table

SM_90 = resolve_target({"kind": "cuda", "arch": "sm_90"})
ROOT = Path(__file__).parents[2]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `collect` and `fit` of `benchmarks/`, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import collect
    import fit

    yield collect, fit
    for name in ("collect", "fit", "script"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("algorithm", [*algorithms_on(SM_90), "attention", "gate"])
def test_problems(algorithm: str, scripts: tuple[ModuleType, ModuleType]) -> None:
    """Each template has problems that it takes, the same each time."""
    collect, _ = scripts
    problem = collect.random_problem(Draw(algorithm), algorithm, SM_90)
    assert problem == collect.random_problem(Draw(algorithm), algorithm, SM_90)
    assert algorithm in algorithms_for(problem, SM_90)


@pytest.mark.parametrize("algorithm", ["matvec", "attention", "input_gradient_nhwc"])
def test_configurations(algorithm: str, scripts: tuple[ModuleType, ModuleType]) -> None:
    """They are legal and differ, and the default comes first."""
    collect, _ = scripts
    trials = [*collect.trials([algorithm], 1, 6, 0, SM_90)]
    own = [trial for trial in trials if trial.task.name == f"cuda/{algorithm}"]
    template: Any = template_named(f"cuda/{algorithm}")
    assert own[0].config == template.default_config(own[0].task.problem, SM_90)
    assert len({trial.config for trial in own}) == len(own) == 6
    assert all(template.is_legal(trial.task.problem, trial.config, SM_90) for trial in own)


def test_resources_of_machine_code(scripts: tuple[ModuleType, ModuleType]) -> None:
    """Registers and local memory are those that the compiler tells of each kernel."""
    collect, _ = scripts
    source = """
    extern "C" __global__ void few(float* x) { x[threadIdx.x] *= 2; }
    extern "C" __global__ void local(float* x, int n) {
      float held[64];
      for (int i = 0; i < 64; ++i) held[i] = x[i * threadIdx.x];
      for (int i = 0; i < n; ++i) x[i] = held[(i * n) % 64];
    }
    """
    told = cuda.kernel_resources(source, "sm_90")
    found = collect.kernels_of(cuda.compile_source(source, "sm_90"))
    assert sorted((each["registers"], each["local_bytes"]) for each in found) == sorted(
        (each.registers, each.stack_bytes) for each in told
    )
    assert min(each["code_bytes"] for each in found) > 0
    assert collect.code_of([cuda.compile_source(source, "sm_90")])["kernels"] == 2


def test_a_fit_finds_the_rates_that_times_were_made_with(
    scripts: tuple[ModuleType, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    collect, fit = scripts
    rates = msgspec.structs.replace(fit.START, issue=2.5, latency=700.0)
    factors, log = Factors(issued=1.5, waiting=0.7), tmp_path / "records.jsonl"
    with log.open("w") as file:
        for trial in collect.trials(["attention", "input_gradient", "weight_gradient_nhwc"], 4, 8, 0, SM_90):
            counts = trial.task.template.counts(trial.task.problem, trial.config, SM_90)
            print(record(trial, clocks(counts, H100, rates, factors) / fit.CLOCK), file=file)
    problems = fit.measured([str(log)])
    assert {problem.template for problem in problems} >= {"cuda/attention", "cuda/input_gradient"}
    found = fit.Fit(problems)
    parameters = found.fitted(problems)
    errors = found.logarithms(parameters, problems) - np.log(np.concatenate([each.seconds for each in problems]))
    assert np.abs(errors).max() < 0.05
    told = fit.report(problems, fit.held_out(problems, 2))
    assert max(error.regret for error in told.values()) < 1.02
    assert "cuda/attention" in capsys.readouterr().out
    written = found.table(parameters, told)
    assert msgspec.json.decode(msgspec.json.encode(written), type=Table) == written
    assert written.gpus["H100"] != table().gpus["H100"]


def record(trial: MeasureInput, seconds: float) -> str:
    """Return the line of a log for a trial on an H100."""
    device = DeviceFacts("NVIDIA H100 80GB HBM3", driver="1")
    result = MeasureResult((seconds,), Status.OK, None, 1.0, 0.0, device)
    return json.dumps(msgspec.to_builtins(Record.of(trial, result)))


def test_the_rates_are_those_of_the_records(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, fit = scripts
    problems = fit.measured([str(ROOT / "benchmarks" / "kernels-h200.jsonl.gz")])
    again = fit.Fit(problems)
    found = msgspec.to_builtins(again.table(again.fitted(problems), {}))
    for name, row in msgspec.to_builtins(table().gpus | table().templates).items():
        assert (found["gpus"] | found["templates"])[name] == pytest.approx(row, rel=0.05)


def test_records_of_two_kinds_of_gpus_are_refused(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    collect, fit = scripts
    log = tmp_path / "records.jsonl"
    with log.open("w") as file:
        for arch in ("sm_80", "sm_90"):
            target = resolve_target({"kind": "cuda", "arch": arch})
            for trial in collect.trials(["attention"], 1, 2, 0, target):
                print(record(trial, 1e-5), file=file)
    with pytest.raises(InvalidArgumentError, match="records is 'H100'; expected those of one row, as the A100 has"):
        fit.Fit(fit.measured([str(log)]))
    with pytest.raises(InvalidArgumentError, match=r"records is \[\]; expected several configurations"):
        fit.Fit([])
