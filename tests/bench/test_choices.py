"""The script that compares default configurations with those of an older commit, without a GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from tvmconv.autotvm.task import extract_from_suite
from tvmconv.dispatch.record import Record, append
from tvmconv.dispatch.trial import MeasureResult, Status
from tvmconv.problem import Problem
from tvmconv.targets import DeviceFacts, resolve_target

ROOT = Path(__file__).parents[2]
TARGET = resolve_target({"kind": "cuda", "arch": "sm_90"})


@pytest.fixture
def choices(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The module `choices` of `benchmarks/`, which is no package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import choices

    yield choices
    for name in ("choices", "collect", "defaults", "script"):
        sys.modules.pop(name, None)


@pytest.fixture
def line(choices: ModuleType) -> msgspec.Struct:
    """A problem with the default of this checkout, and another one as the older commit's."""
    problem = extract_from_suite("depthwise-networks", TARGET)[0].problem
    question = choices.Question("depthwise-networks float32", str(TARGET), problem.to_json(), "depthwise")
    (found,) = choices.answered(ROOT, [question])
    assert found.template == "cuda/depthwise"
    before = choices.Choice("cuda/depthwise", found.knobs | {"planes": 3 - found.knobs["planes"] % 2})
    line: msgspec.Struct = choices.Line(question.set, question.target, question.problem, before, found)
    return line


def test_suites_and_random_problems_are_asked_for(choices: ModuleType) -> None:
    asked = [*choices.questions(["linear-networks"], [], ["gate", "depthwise"], 2, TARGET)]
    sets = [each.set for each in asked]
    assert {sets.count(f"linear-networks {name}") for name in ("float32", "tf32", "float16")} == {28}
    assert {sets.count(f"random {name}") for name in ("gate", "depthwise")} == {2}
    assert {each.algorithm for each in asked if each.set.startswith("linear")} == {"auto"}
    assert all(Problem.from_json(each.problem).to_json() == each.problem for each in asked)


def test_each_configuration_is_measured_once(choices: ModuleType, line: msgspec.Struct) -> None:
    same = msgspec.structs.replace(line, old=line.new)  # type: ignore[attr-defined]
    found = [*choices.trials([line, same])]
    assert len(found) == 2
    assert len({choices.key_of(each) for each in found}) == len(found)
    assert found[0].task.space.number(found[0].config) is None


def test_times_are_compared(
    choices: ModuleType, line: msgspec.Struct, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mean counts problems whose choice is the same; what was not measured, or failed, is told."""
    records, here = tmp_path / "records.jsonl", DeviceFacts("NVIDIA H200", driver="1")
    for choice, cost in ((line.old, 2e-6), (line.new, 8e-6)):  # type: ignore[attr-defined]
        result = MeasureResult((cost, 2 * cost), Status.OK, None, 1.0, 0.0, here)
        append(records, [Record.of(choices.trial(line, choice), result)])
    same = msgspec.structs.replace(line, old=line.new)  # type: ignore[attr-defined]
    other = choices.Choice("cuda/depthwise", line.new.knobs | {"planes": 64})  # type: ignore[attr-defined]
    unmeasured = msgspec.structs.replace(line, new=other)
    broken = msgspec.structs.replace(line, new=choices.Choice("cuda/depthwise", line.new.knobs | {"planes": 32}))  # type: ignore[attr-defined]
    failure = MeasureResult((), Status.CRASH, "the process died", 1.0, 0.0, here)
    append(records, [Record.of(choices.trial(line, broken.new), failure)])  # type: ignore[attr-defined]
    choices.report([line, same, unmeasured, broken], records)
    told = capsys.readouterr().out
    assert told.splitlines()[1].split() == ["depthwise-networks", "float32", "2", "1", "2.000", "1.00", "4.00"]
    assert "1 others were not measured, or the old choice failed; the new choice failed for 1" in told
    assert "failed: depthwise-networks float32" in told
    assert "4.00 of 2.0 us: depthwise-networks float32" in told


@pytest.mark.parametrize(
    "words", [[], ["--base", "HEAD"], ["a", "b", "-o", "c"], ["a", "--base", "HEAD", "-o", "c"]], ids=str
)
def test_wrong_options_are_told(
    choices: ModuleType, words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["choices.py", *words])
    with pytest.raises(SystemExit):
        choices.main()
    assert "expected --base COMMIT -o FILE, or CHOICES -o FILE" in capsys.readouterr().err
