"""The scripts that collect records and fit the model of a GPU to them, without a GPU."""

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
from tvmconv.targets import DeviceFacts, cuda, resolve_target
from tvmconv.targets.devices import H200

ROOT = Path(__file__).parents[2]
H200_HERE, SM_90 = DeviceFacts("NVIDIA H200", driver="1"), resolve_target({"kind": "cuda", "arch": "sm_90"})


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, ModuleType]]:
    """The modules `collect` and `fit` of `benchmarks/`, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import collect
    import fit

    yield collect, fit
    for name in ("collect", "fit", "script"):
        sys.modules.pop(name, None)


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


def test_the_script_fits_what_was_measured(
    scripts: tuple[ModuleType, ModuleType],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It prints regrets on problems that were held out, and writes a table with other rates than the package's."""
    _, fit = scripts
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


def test_one_problem_alone_is_not_held_out(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    _, fit = scripts
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
def test_the_rates_are_those_of_the_records(
    scripts: tuple[ModuleType, ModuleType], names: list[str], row: str, like: str
) -> None:
    """A machine with records of all templates gives their factors; another keeps them."""
    _, fit = scripts
    problems = measured([ROOT / "benchmarks" / f"{name}.jsonl.gz" for name in names])
    again = fit.fit_like(like, problems) if like else Fit(problems)
    assert again.machine.row == row
    package = again.model.table()
    found = fit.table_of(again, again.fitted(problems), {})
    rows = [(found.machines[row], package.machines[row])]
    rows += [(found.templates[module], factors) for module, factors in package.templates.items()]
    for one, other in rows:
        assert msgspec.to_builtins(one) == pytest.approx(msgspec.to_builtins(other), rel=0.05)


def test_the_machine_that_a_fit_begins_with_is_one_of_the_table(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, fit = scripts
    problems = measured([ROOT / "benchmarks" / "kernels-cpu-zen4-avx2.jsonl.gz"])
    with pytest.raises(InvalidArgumentError, match="like is 'Zen 9'; expected one of Zen 5, Zen 4, Zen 4, AVX2"):
        fit.fit_like("Zen 9", problems)
