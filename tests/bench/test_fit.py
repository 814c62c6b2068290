"""The script that fits the model of a GPU or a CPU to records, without a GPU."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tests.calibration.pretended import write
from tvmconv.calibration.fit import START, Fit, measured
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules.cuda.model.rates import Rates, table
from tvmconv.schedules.fitted import Factors, Table
from tvmconv.targets import DeviceFacts, resolve_target
from tvmconv.targets.devices import H200

ROOT = Path(__file__).parents[2]
H200_HERE, SM_90 = DeviceFacts("NVIDIA H200", driver="1"), resolve_target({"kind": "cuda", "arch": "sm_90"})


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `fit` of `benchmarks/`, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import fit

    yield fit
    for name in ("fit", "script"):
        sys.modules.pop(name, None)


def test_the_script_fits_what_was_measured(
    fit: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints regrets on problems that were held out, and writes a table with other rates than the package's."""
    log, output = tmp_path / "records.jsonl", tmp_path / "rates.json"
    write(log, H200_HERE, H200, msgspec.structs.replace(START, issue=2.5), Factors(issued=1.5, waiting=0.7), SM_90)
    monkeypatch.setattr(sys, "argv", ["fit.py", str(log), "-o", str(output), "--folds", "2"])
    fit.main()
    assert "cuda/attention" in capsys.readouterr().out
    written = msgspec.json.decode(output.read_bytes(), type=Table[Rates])
    assert written.machines["H200"] != table().machines["H200"]
    assert written.templates.keys() == table().templates.keys()
    assert written.errors["attention"].regret < 1.02
    assert json.loads(output.read_bytes())["errors"]["attention"]["problems"] == 4


def test_one_problem_alone_is_not_held_out(fit: ModuleType, tmp_path: Path) -> None:
    write(tmp_path / "log.jsonl", H200_HERE, H200, START, Factors(), SM_90)
    problems = measured([tmp_path / "log.jsonl"])
    with pytest.raises(InvalidArgumentError, match="those of two problems or more, of which one is held out"):
        fit.held_out(Fit(problems), problems[:1], 2)


@pytest.mark.parametrize(
    ("names", "row", "like"),
    [
        (["kernels-h200"], "H200", ""),
        (["kernels-cpu-zen4"], "Zen 4", ""),
        (["kernels-cpu-zen4-avx2"], "Zen 4, AVX2", "Zen 4"),
        (["kernels-cpu-zen5", "choices-cpu-zen5"], "Zen 5", "Zen 4"),
    ],
)
def test_the_rates_are_those_of_the_records(fit: ModuleType, names: list[str], row: str, like: str) -> None:
    """A machine with records of all templates gives their factors; another keeps them."""
    problems = measured([ROOT / "benchmarks" / f"{name}.jsonl.gz" for name in names])
    again = fit.fit_like(like, problems) if like else Fit(problems)
    assert again.machine.row == row
    package = again.model.table()
    found = fit.table_of(again, again.fitted(problems), {})
    rows = [(found.machines[row], package.machines[row])]
    rows += [(found.templates[module], factors) for module, factors in package.templates.items()]
    for one, other in rows:
        assert msgspec.to_builtins(one) == pytest.approx(msgspec.to_builtins(other), rel=0.05)


def test_the_machine_that_a_fit_begins_with_is_one_of_the_table(fit: ModuleType) -> None:
    problems = measured([ROOT / "benchmarks" / "kernels-cpu-zen4-avx2.jsonl.gz"])
    with pytest.raises(InvalidArgumentError, match="like is 'Zen 9'; expected one of Zen 5, Zen 4, Zen 4, AVX2"):
        fit.fit_like("Zen 9", problems)
