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
from tvmconv.schedules.cuda.model.rates import Factors, Table, table
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
    written = msgspec.json.decode(output.read_bytes(), type=Table)
    assert written.gpus["H200"] != table().gpus["H200"]
    assert written.templates.keys() == table().templates.keys()
    assert written.errors["attention"].regret < 1.02
    assert json.loads(output.read_bytes())["errors"]["attention"]["problems"] == 4


def test_one_problem_alone_is_not_held_out(scripts: tuple[ModuleType, ModuleType], tmp_path: Path) -> None:
    _, fit = scripts
    write(tmp_path / "log.jsonl", H200_HERE, H200, START, Factors(), SM_90)
    problems = measured([tmp_path / "log.jsonl"])
    with pytest.raises(InvalidArgumentError, match="those of two problems or more, of which one is held out"):
        fit.held_out(problems[:1], 2)


def test_the_rates_are_those_of_the_records(scripts: tuple[ModuleType, ModuleType]) -> None:
    _, fit = scripts
    problems = measured([ROOT / "benchmarks" / "kernels-h200.jsonl.gz"])
    again = Fit(problems)
    found = msgspec.to_builtins(fit.table_of(again, again.fitted(problems), {}))
    assert [again.gpu.model] == [*table().gpus]
    for name, row in msgspec.to_builtins(table().gpus | table().templates).items():
        assert (found["gpus"] | found["templates"])[name] == pytest.approx(row, rel=0.05)
