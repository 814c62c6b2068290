"""Calibrations of a pretended machine: the rates that are found, what is kept, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from tests.calibration.pretended import L40S, Pretended, target_of
from tvmconv.autotvm.measure import MeasureInput
from tvmconv.autotvm.task import ConvTask
from tvmconv.calibration import session
from tvmconv.calibration.fit import measured, regret
from tvmconv.calibration.problems import SMALL
from tvmconv.calibration.session import LAST_SECONDS, REFERENCE, Regret, calibrate
from tvmconv.calibration.trials import trials
from tvmconv.cli import main
from tvmconv.dispatch.record import Record, append, load_from_file
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError, TvmconvError
from tvmconv.schedules.cpu.model import rates as cpu_rates
from tvmconv.schedules.cuda.model.rates import USER, Rates, rates_of, shipped_rates
from tvmconv.targets import DeviceFacts, cpu_of, gpu_of, resolve_target

TARGET = target_of("L40S", "sm_89")
CPU = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "znver4"})
GPU = gpu_of(TARGET)
BEFORE = shipped_rates(GPU)
ACTUAL = msgspec.structs.replace(BEFORE, launch=6000.0, issue=12.0, mma=1.0, l2=100.0, latency=3000.0, turn=8.0)
"""The rates of the pretended GPU: its units are twice as fast as expected, and its waits six times as long."""

LOG, PART = "calibration-nvidia-l40s.jsonl", "calibration-nvidia-l40s.part.jsonl"


@pytest.fixture(autouse=True)
def folder(user_folder: Path) -> Path:
    return user_folder


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure a third of the kernels, in tests of something else."""
    monkeypatch.setattr(session, "KERNELS", 70)
    monkeypatch.setattr(session, "LEAST", 20)
    monkeypatch.setattr(session, "BETWEEN", 14)


def run(gpu: Pretended, seconds: float = 300.0) -> session.Calibration:
    return calibrate(gpu, gpu, TARGET, seconds)


def test_the_rates_of_a_gpu_are_found(folder: Path) -> None:
    """Those that most kernels depend on are near; choices for other problems are as good as with the actual ones."""
    gpu = Pretended(ACTUAL)
    found = run(gpu)
    assert (found.device, found.model, found.before) == ("NVIDIA L40S", "L40S", BEFORE)
    assert 190 <= found.kernels <= 200
    for name, near in {"launch": 0.05, "latency": 0.05, "turn": 0.1}.items():
        assert getattr(found.after, name) == pytest.approx(getattr(ACTUAL, name), rel=near)
    assert {each.template for each in found.regrets} >= {"cuda/input_gradient", "cuda/input_gradient_nhwc"}
    assert rates_of(GPU) == found.after
    assert (found.kept, found.trials) == (str(folder / "rates.json"), str(folder / LOG))

    exact, log = Pretended(ACTUAL, noise=0.0), folder / "others.jsonl"
    others = trials(["input_gradient"], 3, 30, 1, TARGET, SMALL, 0)
    append(log, [Record.of(*each) for each in exact.measure(others, lambda trial: None)])
    after = session._fit(problems := measured([log]), found.after)
    before = session._fit(problems, BEFORE)
    ratios = [[regret(each, fit.logarithms(fit.start, [each])) for each in problems] for fit in (before, after)]
    assert max(ratios[1]) < 1.02
    assert max(ratios[0]) > 1.05


def test_the_rates_of_a_cpu_are_found(folder: Path) -> None:
    """They are kept in a file for CPUs, for the model of the row, and those of other CPUs stay."""
    target = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "icelake-server"})
    cpu, other = cpu_of(target), cpu_of(resolve_target({"kind": "llvm", "mcpu": "znver5"}))
    before = cpu_rates.shipped_rates(cpu)
    actual = msgspec.structs.replace(before, multiply=2 * before.multiply, last=3 * before.last)
    device = DeviceFacts("Ice Lake", threads=2)
    found = calibrate(Pretended(actual, device), Pretended(actual), target, 300.0)
    assert (found.device, found.model, found.before) == ("Ice Lake", "Ice Lake", before)
    assert found.kernels >= 190
    assert isinstance(found.after, cpu_rates.Rates)
    assert found.after.multiply == pytest.approx(actual.multiply, rel=0.05)
    assert found.after.last == pytest.approx(actual.last, rel=0.1)
    assert {"cpu/direct", "cpu/depthwise", "cpu/im2win"} <= {each.template for each in found.regrets}
    assert found.kept == str(folder / "rates-cpu.json")
    assert cpu_rates.rates_of(cpu) == found.after
    assert cpu_rates.rates_of(other) == cpu_rates.shipped_rates(other)
    assert rates_of(GPU) == BEFORE


def test_a_call_that_was_ended_goes_on(few: None, folder: Path) -> None:
    killed, gpu = Pretended(ACTUAL, most=40), Pretended(ACTUAL)
    with pytest.raises(KeyboardInterrupt):
        run(killed)
    assert len(load_from_file(folder / PART).records) == 39  # all but the first, which may find a GPU that has slept
    found = run(gpu)
    of_both = [str((trial.task, trial.config)) for trial in (*killed.measured, *gpu.measured) if not is_probe(trial)]
    assert len(of_both) == len(set(of_both)) == 70
    assert found.kept is not None
    assert not (folder / PART).exists()
    again = Pretended(ACTUAL)
    assert run(again).before == found.after
    assert sum(not is_probe(trial) for trial in again.measured) == 70  # measured anew, as the last call ended


def is_probe(trial: MeasureInput) -> bool:
    return isinstance(trial.task, ConvTask) and trial.task.workload == REFERENCE


def test_too_short_a_time_keeps_the_trials(few: None, folder: Path) -> None:
    times = iter(range(10**6))
    gpu = Pretended(ACTUAL)
    with pytest.raises(TvmconvError, match="kernels were measured in time, of at least 20: the same command again"):
        calibrate(gpu, gpu, TARGET, LAST_SECONDS + 12, lambda: float(next(times)))
    assert load_from_file(folder / PART).records
    assert not (folder / "rates.json").exists()
    assert run(Pretended(ACTUAL)).kept is not None


@pytest.mark.parametrize(
    ("gpu", "why"),
    [
        (
            Pretended(ACTUAL, slower=lambda number: 1.3 if number > 50 else 1.0, noise=0.0),
            "the same kernel took 19.98 µs and 25.97 µs",
        ),
        (Pretended(ACTUAL, mhz=1500), "the clock was 1500 MHz, and the GPU has up to 3000 MHz"),
    ],
    ids=["slower", "throttled"],
)
def test_a_disturbed_gpu_keeps_nothing(gpu: Pretended, why: str, few: None, folder: Path) -> None:
    with pytest.raises(TvmconvError, match=f"NVIDIA L40S is busy or throttled: {why}.*. Nothing is kept"):
        run(gpu)
    assert [*folder.iterdir()] == []
    assert rates_of(GPU) == BEFORE


def test_a_disturbance_between_two_calls_is_seen(few: None, folder: Path) -> None:
    """Kernels that a call has measured before it was ended are no better than those of the next one."""
    with pytest.raises(KeyboardInterrupt):
        run(Pretended(ACTUAL, most=40, noise=0.0))
    with pytest.raises(TvmconvError, match="the same kernel took"):
        run(Pretended(ACTUAL, slower=lambda number: 1.2, noise=0.0))
    assert [*folder.iterdir()] == []


def test_a_busy_gpu_is_not_measured() -> None:
    gpu = Pretended(ACTUAL, use=30)
    with pytest.raises(TvmconvError, match="NVIDIA L40S is busy: other programs use it 30% of the time. Nothing was"):
        run(gpu)
    assert gpu.measured == []


def test_records_of_another_device_are_refused(few: None, folder: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(Pretended(ACTUAL, DeviceFacts("NVIDIA L40S", driver="1"), most=20))
    log = folder / PART
    log.write_text(log.read_text().replace('"NVIDIA L40S"', '"NVIDIA L4"'))
    expected = f"device.name in {log} is 'NVIDIA L4'; expected 'NVIDIA L40S' in each record"
    with pytest.raises(InvalidArgumentError, match=re.escape(expected)):
        run(Pretended(ACTUAL))


def test_rates_that_choose_worse_are_not_kept(few: None, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    USER.keep(GPU.model, "NVIDIA L40S", ACTUAL)
    regrets = (Regret("cuda/input_gradient", 3, 1.0, 1.1), Regret("cuda/attention", 2, 1.2, 1.1))
    monkeypatch.setattr(session, "regrets_of", lambda problems, after: regrets)
    assert run(Pretended(ACTUAL)).kept is None
    assert rates_of(GPU) == ACTUAL
    monkeypatch.setattr(session, "regrets_of", lambda problems, after: regrets[1:])
    assert run(Pretended(ACTUAL)).kept is not None


def test_the_user_s_rates_are_no_beginning(few: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fit begins with the package's rates: what records do not determine does not wander from call to call."""
    begun = list[Rates]()
    monkeypatch.setattr(session, "fitted", lambda problems, start: begun.append(start) or ACTUAL)
    assert [run(Pretended(ACTUAL, noise=0.0)).before for _ in range(2)] == [BEFORE, ACTUAL]
    assert begun == [BEFORE, BEFORE]


@pytest.fixture
def in_command(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pretended], list[str]]:
    """Return a function that lets the command measure on a pretended GPU."""

    def pretend(gpu: Pretended) -> list[str]:
        from tvmconv import targets
        from tvmconv.autotvm import measure
        from tvmconv.autotvm.measure import builder, runner
        from tvmconv.calibration import steadiness

        monkeypatch.setattr(targets, "device_for", lambda target: None)
        monkeypatch.setattr(targets, "resolve_target", lambda target: {"cuda": TARGET, "llvm": CPU}[target])
        monkeypatch.setattr(measure, "measure_option", lambda *_: gpu)
        monkeypatch.setattr(builder, "LocalBuilder", lambda *_: None)
        monkeypatch.setattr(runner, "LocalRunner", lambda **_: None)
        monkeypatch.setattr(steadiness, "Clock", lambda: gpu)
        monkeypatch.setattr(steadiness, "Processors", lambda: gpu)
        return ["calibrate", "--minutes", "1"]

    return pretend


def test_the_command(few: None, in_command: Callable[[Pretended], list[str]], folder: Path) -> None:
    result = CliRunner().invoke(main, in_command(Pretended(ACTUAL)))
    assert result.exit_code == 0
    lines = [line.split() for line in result.stdout.splitlines() if line]
    assert lines[0] == ["rate", "before", "after"]
    assert [line[0] for line in lines[1:11]] == [*Rates.__struct_fields__]
    assert lines[11] == ["choices", "by", "problems", "regret", "before", "after"]
    assert f"kept in {folder / 'rates.json'}, for targets of the model L40S" in result.stderr
    data = json.loads(CliRunner().invoke(main, [*in_command(Pretended(ACTUAL)), "--json"]).stdout)
    assert data["device"] == "NVIDIA L40S"
    assert (data["kept"], data["trials"]) == (str(folder / "rates.json"), str(folder / LOG))
    assert data["after"] == msgspec.to_builtins(rates_of(GPU))


def test_the_command_for_a_cpu(few: None, in_command: Callable[[Pretended], list[str]], folder: Path) -> None:
    rates = cpu_rates.shipped_rates(cpu_of(CPU))
    words = in_command(Pretended(rates, DeviceFacts("some CPU", threads=2)))
    data = json.loads(CliRunner().invoke(main, [*words, "--target", "llvm", "--json"]).stdout)
    assert (data["device"], data["model"]) == ("some CPU", "Zen 4")
    assert data["after"].keys() == {*cpu_rates.Rates.__struct_fields__}
    assert data["trials"] == str(folder / "calibration-some-cpu.jsonl")


def test_a_disturbance_in_the_command(few: None, in_command: Callable[[Pretended], list[str]]) -> None:
    result = CliRunner().invoke(main, in_command(Pretended(ACTUAL, mhz=1500)))
    assert result.exit_code == TvmconvError.exit_code
    assert "busy or throttled" in result.stderr


def test_the_command_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    from tvmconv.targets import nvidia

    monkeypatch.setattr(nvidia, "gpu", lambda number: None)
    assert CliRunner().invoke(main, ["calibrate"]).exit_code == NoDeviceError.exit_code


def test_what_is_pretended_has_the_device_of_the_target() -> None:
    assert (L40S.name, GPU.model) == ("NVIDIA L40S", "L40S")
