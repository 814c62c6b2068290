"""The fit of the model of a GPU to records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.calibration.pretended import record, write
from tvmconv.calibration.fit import START, Fit, chooses_by_counts, counted_as, counts_work, geometric, measured, regret
from tvmconv.calibration.problems import LARGE
from tvmconv.calibration.trials import trials
from tvmconv.dispatch.record import append
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.model.rates import Rates, rates_of, table
from tvmconv.schedules.fitted import Factors, Table
from tvmconv.targets import DeviceFacts, resolve_target
from tvmconv.targets.devices import H100, H200

RECORDS = Path(__file__).parents[2] / "benchmarks" / "kernels-h200.jsonl.gz"
SM_80, SM_90 = (resolve_target({"kind": "cuda", "arch": arch}) for arch in ("sm_80", "sm_90"))
H100_HERE, H200_HERE, A100_HERE, RTX_HERE = (
    DeviceFacts(name, driver="1")
    for name in ("NVIDIA H100 80GB HBM3", "NVIDIA H200", "NVIDIA A100-SXM4-80GB", "NVIDIA RTX PRO")
)


def test_a_fit_finds_the_rates_that_times_were_made_with(tmp_path: Path) -> None:
    rates = msgspec.structs.replace(START, issue=2.5, latency=700.0)
    write(tmp_path / "log.jsonl", H100_HERE, H100, rates, Factors(issued=1.5, waiting=0.7), SM_90)
    problems = measured([tmp_path / "log.jsonl"])
    assert {problem.template for problem in problems} >= {"cuda/attention", "cuda/input_gradient"}
    assert {problem.machine for problem in problems} == {H100}
    fit = Fit(problems)
    parameters = fit.fitted(problems)
    errors = fit.logarithms(parameters, problems) - np.log(np.concatenate([each.seconds for each in problems]))
    assert np.abs(errors).max() < 0.05
    found, factors = fit.rows(parameters)
    written = Table({"H100": found}, factors, {})
    assert msgspec.json.decode(msgspec.json.encode(written), type=Table[Rates]) == written
    assert {*factors} >= {"attention", "gradients.input"}


def test_factors_that_are_known_are_not_fitted(tmp_path: Path) -> None:
    """Then the rates alone explain the times, and are found themselves."""
    rates, factors = msgspec.structs.replace(START, issue=2.5, latency=700.0), Factors(issued=1.5, waiting=0.7)
    write(tmp_path / "log.jsonl", H100_HERE, H100, rates, factors, SM_90)
    problems = measured([tmp_path / "log.jsonl"])
    fit = Fit(problems, START, {counted_as(each.template): factors for each in problems})
    parameters = fit.fitted(problems)
    assert len(parameters) == len(fit.start) == len(Rates.__struct_fields__)
    found, same = fit.rows(parameters)
    assert (found.issue, found.latency) == pytest.approx((2.5, 700), rel=0.05)
    assert {*same.values()} == {factors}


def test_few_kernels_of_a_real_gpu_tell_its_rates() -> None:
    """By six kernels of a third of an H200's problems, wrong rates become as good on others as those of all records.

    As in a calibration these are in the default, in promising and in random configurations.
    """
    problems = measured([RECORDS])
    factors = table().templates
    some = [
        replace(each, counts=each.counts[::2], seconds=each.seconds[::2], before=each.before[::2])
        for each in problems[::3]
    ]
    others = [each for number, each in enumerate(problems) if number % 3]
    best = rates_of(H200)
    wrong = msgspec.structs.replace(best, launch=6000.0, latency=1000.0, l2=20.0, issue=3.0, mma=1.0, turn=4.0)
    fit = Fit(some, wrong, factors)

    def errors(parameters: Any) -> tuple[float, float]:
        """Return the mean regret, and the root mean square error of the logarithms of times."""
        told = [fit.logarithms(parameters, [each]) for each in others]
        apart = np.concatenate([one - np.log(each.seconds) for one, each in zip(told, others, strict=True)])
        ratios = [regret(each, one) for one, each in zip(told, others, strict=True)]
        return geometric(ratios), float(np.sqrt(np.mean(apart**2)))

    before, after = errors(fit.start), errors(fit.fitted(some))
    package = errors(Fit(some, best, factors).start)
    assert after[0] < 1.02 * package[0]
    assert after[1] < 1.15 * package[1]
    assert before[1] > 2 * package[1]


@pytest.mark.parametrize(("device", "model"), [(H200_HERE, "H200"), (H100_HERE, "H100"), (RTX_HERE, "H100")], ids=str)
def test_a_record_is_of_the_gpu_that_measured_it(device: DeviceFacts, model: str, tmp_path: Path) -> None:
    """Its target may name no model: then the driver's name has it, if there is a row for that."""
    write(tmp_path / "log.jsonl", device, H200, START, Factors(), SM_90)
    assert {problem.machine.row for problem in measured([tmp_path / "log.jsonl"])} == {model}


def test_records_of_two_kinds_of_gpus_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    for device, target in ((A100_HERE, SM_80), (H100_HERE, SM_90)):
        append(log, [record(each, 1e-5, device) for each in trials(["attention"], 1, 2, 0, target, LARGE, 0)])
    with pytest.raises(InvalidArgumentError, match="records is 'H100'; expected those of one row, as the A100 has"):
        Fit(measured([log]))
    with pytest.raises(InvalidArgumentError, match=r"records is \[\]; expected several configurations"):
        Fit([])


def test_templates_that_count() -> None:
    assert [counts_work(name) for name in ("cuda/attention", "cpu/direct", "cuda/gone")] == [True, True, False]
    assert chooses_by_counts("cuda/input_gradient")
    assert chooses_by_counts("cpu/dot")
    assert not chooses_by_counts("cuda/sparse")
    assert not chooses_by_counts("cpu/amx")
