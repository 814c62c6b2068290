"""Templates of one's own: tuned, recorded, resumed and applied as tvmconv's own."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvmconv as library
from tests.shared.command_line import tvmconv, tvmconv_json
from tests.shared.templates_of_tests import matmul, on_llvm
from tvmconv import autotvm
from tvmconv.autotvm import record, tidy
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.measure.runner import LocalRunner
from tvmconv.autotvm.record import Record, decode, encode, load_from_file
from tvmconv.autotvm.templates import TemplateTask, create_task
from tvmconv.autotvm.tuner.xgb_tuner import matrix
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import DeviceFacts, device_facts

pytestmark = pytest.mark.usefixtures("without_torch")

ROOT = Path(__file__).parents[2]
TASK = create_task("test/matmul", (32, "float32"), "llvm")
TUNERS = ["xgb", "ga", "random", "grid"]


class Instant:
    """A measurer that measures nothing: the larger the tiles, the faster; those of a single column fail."""

    def device(self, task: autotvm.Task) -> DeviceFacts:
        facts = device_facts(task.target.kind.name)
        assert facts is not None
        return facts

    def measure(
        self,
        inputs: Sequence[MeasureInput],
        started: Callable[[MeasureInput], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> Generator[tuple[MeasureInput, MeasureResult], None, None]:
        for trial in inputs:
            if stop():
                return
            started(trial)
            cost = 1e-3 / (1 + sum(trial.config.numbers()))
            failed = trial.task == TASK and trial.config["tile_x"].size[1] == 1 and trial.config.index > 0
            costs, status = ((), Status.BUILD_ERROR) if failed else ((cost,), Status.OK)
            yield trial, MeasureResult(costs, status, "no" if failed else None, 0.1, 1e9, self.device(trial.task))

    def close(self) -> None: ...


def trial(index: int, cost: float, task: TemplateTask = TASK, stage: Stage = Stage.SEARCH) -> Record:
    result = MeasureResult((cost,), Status.OK, None, 0.1, 1e9, Instant().device(task))
    return Record.of(MeasureInput(task.target, task, task.space.get(index), stage), result)


def test_a_line_has_the_layout_of_autotvm() -> None:
    config = TASK.space.get(45)
    line = json.loads(encode(trial(45, 1e-6)))
    assert line["input"][1:] == ["test/matmul", [32, "float32"], {}]
    assert line["config"] == {
        "index": 45,
        "code_hash": None,
        "entity": [
            ["tile_y", "sp", list(config["tile_y"].size)],
            ["tile_x", "sp", list(config["tile_x"].size)],
            ["order", "re", list(config["order"].perm)],
            ["inner", "an", list(config["inner"].anns)],
        ],
    }
    again = decode(encode(trial(45, 1e-6)))
    assert (again.problem, TASK.config(again.knobs)) == (TASK.problem, config)
    with pytest.raises(InvalidArgumentError, match="one of tvmconv's own templates"):
        _ = again.workload


@pytest.mark.parametrize("change", ["kind", "list-of-lists", "two-workloads"])
def test_lines_that_are_no_records(change: str, tmp_path: Path) -> None:
    line = json.loads(encode(trial(5, 1e-6)))
    if change == "kind":
        line["config"]["entity"][0][1] = "xx"
    elif change == "list-of-lists":
        line["config"]["entity"][0][2] = [[1]]
    else:
        line["input"][2] = 2 * [msgspec.to_builtins(library.ConvWorkload.depthwise((1, 4, 8, 8), (4, 1, 3, 3)))]
    (tmp_path / "log").write_text(json.dumps(line) + "\n")
    assert load_from_file(tmp_path / "log").skipped == {"foreign": 1}


@pytest.mark.parametrize("name", TUNERS)
def test_tuners_find_the_best_and_go_on_from_a_log(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    best = max((c for c in TASK.space.configs if c["tile_x"].size[1] > 1), key=lambda config: sum(config.numbers()))
    autotvm.tune_tasks([TASK], log, Instant(), tuner=name, trials=30, seed=1)
    (summary,) = autotvm.tune_tasks([TASK], log, Instant(), tuner=name, trials=len(TASK.space), seed=1)
    assert (summary.trials, summary.best_config) == (len(TASK.space), best)
    searched = [one.config.entity for one in load_from_file(log) if one.stage is Stage.SEARCH]
    assert len(searched) == len(set(searched)) == len(TASK.space)


@pytest.mark.parametrize("name", TUNERS)
def test_tuners_take_spaces_too_large_to_list(name: str, tmp_path: Path) -> None:
    task = create_task("test/large", (8,), "llvm")
    (summary,) = autotvm.tune_tasks([task], tmp_path / "log", Instant(), tuner=name, trials=96, seed=1)
    assert (len(task.space), summary.trials) == (2 * 10**7, 96)
    if name in ("xgb", "ga"):
        assert summary.best_cost < 1e-3 / 70, "the mean sum of knobs is 31, their indices included 62"


def test_features_tell_configurations_apart() -> None:
    rows = matrix(TASK, TASK.space.configs)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows, axis=0)) == len(TASK.space)


def test_a_tuner_learns_from_other_arguments() -> None:
    other = create_task("test/matmul", (32, "float64"), "llvm")
    records = [trial(index, 1e-6 * (1 + index % 7), other) for index in range(0, len(other.space), 3)]
    tuner, plain = (autotvm.XGBTuner(TASK, seed=1) for _ in range(2))
    tuner.load_history(records)
    assert tuner.next_batch(8) != plain.next_batch(8)


def test_the_best_record_is_applied_and_a_missing_one_said(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    record.append(log, [trial(5, 2e-6), trial(45, 1e-6), trial(50, 3e-6)])
    best = TASK.space.get(45)
    expected = str(TASK.instantiate(best)[0].mod["main"].script())
    with autotvm.apply_history_best(log), warnings.catch_warnings():
        warnings.simplefilter("error")
        sch, arguments = on_llvm(lambda: matmul(32, "float32"))
    assert str(sch.mod["main"].script()) == expected
    assert [each.name for each in arguments] == ["A", "B", "C"]
    assert autotvm.apply_history_best([log, log]).query("llvm", TASK.workload) == best
    with pytest.warns(UserWarning, match=r"no record of test/matmul\(16,\"float32\"\) for llvm: the default"):
        autotvm.apply_history_best(log).query("llvm", ("test/matmul", 16, "float32"))
    with autotvm.apply_history_best(log), autotvm.FallbackContext() as context:
        with pytest.warns(UserWarning, match="no record of test/matmul"):
            sch, _ = on_llvm(lambda: matmul(32, "float32"))
        with pytest.warns(UserWarning, match="no record of test/matmul"):
            assert context.query(TASK.target, TASK.workload).is_fallback
    assert str(sch.mod["main"].script()) == str(TASK.instantiate(TASK.space.default)[0].mod["main"].script())


@pytest.mark.filterwarnings("ignore:no record of")
@pytest.mark.parametrize("change", ["name", "value", "missing", "tvm"])
def test_records_with_other_knobs_are_left_out_with_a_warning(change: str, tmp_path: Path) -> None:
    one = trial(45, 1e-6)
    (name, kind, _), *others = one.config.entity
    entity = {"name": (("nope", kind, (-1, 2)), *others), "value": ((name, kind, (-1, 7)), *others), "missing": others}
    if change == "tvm":
        changed = msgspec.structs.replace(one, tvm_version="0.1")
    else:
        config = msgspec.structs.replace(one.config, entity=tuple(entity[change]))
        changed = msgspec.structs.replace(one, config=config)
    record.append(tmp_path / "log", [changed])
    context = autotvm.apply_history_best(tmp_path / "log")
    why = "made with TVM 0.1" if change == "tvm" else "with other knobs"
    with pytest.warns(UserWarning, match=f"are left out: 1 {why}"):
        assert context.query("llvm", TASK.workload).is_fallback


def test_logs_with_convolutions_and_templates(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    workload = library.ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3))
    convolution = autotvm.create(workload, "llvm")
    result = MeasureResult((1e-6,), Status.OK, None, 0.1, 1e9, Instant().device(convolution))
    tried = MeasureInput(convolution.target, convolution, convolution.space.configs[3])
    record.append(log, [trial(45, 2e-6), Record.of(tried, result), trial(0, 8e-6)])
    with autotvm.apply_history_best(log) as context:
        assert library.compile(workload).selection.config == convolution.space.configs[3]
        assert context.query("llvm", workload) == convolution.space.configs[3]
        assert context.query("llvm", TASK.workload) == TASK.space.get(45)
    assert len(tidy.pruned(load_from_file(log))) == 3
    shown = tvmconv("log", "show", log)
    assert 'test/matmul(32,"float32")' in shown.stdout
    best = {one["input"][1]: one["config"]["index"] for one in tvmconv_json("log", "best", log)["records"]}
    assert best == {"test/matmul": 45, "cpu/depthwise": 3}
    page = tmp_path / "report.html"
    assert tvmconv("report", log, "-o", page).exit_code == 0
    assert "test/matmul" in page.read_text()


@pytest.fixture(scope="module")
def option(builder: LocalBuilder) -> Iterator[autotvm.measure_option]:
    runner = LocalRunner(number=1, repeat=2, min_repeat_ms=0)
    yield autotvm.measure_option(builder, runner)
    runner.close()


def test_trials_are_built_checked_and_timed_in_processes(option: autotvm.measure_option) -> None:
    measure = autotvm.measure.create_measure_batch(TASK, option)
    configs = [TASK.space.get(index) for index in (0, 45)]
    for result in measure([MeasureInput(TASK.target, TASK, config) for config in configs]):
        assert (result.status, result.reason, len(result.costs)) == (Status.OK, None, 2)
    unrolled = TASK.space.configured(
        {"tile_y": (-1, 1), "tile_x": (-1, 32), "order": (0, 1), "inner": ("unroll",)},
    )
    wrong = create_task("test/another-product", (16,), "llvm")
    (refused,) = measure([MeasureInput(TASK.target, TASK, unrolled)])
    assert refused.status is Status.BUILD_ERROR
    assert "a loop of 32 is too long to unroll, above 16" in str(refused.reason)
    (result,) = autotvm.measure.create_measure_batch(wrong, option)(
        [MeasureInput(wrong.target, wrong, wrong.space.default)]
    )
    assert result.status is Status.WRONG_ANSWER
    assert "of 256 elements of C are wrong" in str(result.reason)
    with pytest.raises(InvalidArgumentError, match="expected trials of test/matmul"):
        measure([MeasureInput(wrong.target, wrong, wrong.space.default)])


def test_what_a_template_raises_is_a_result(option: autotvm.measure_option) -> None:
    task = create_task("test/raises", (16,), "llvm")
    measure = autotvm.measure.create_measure_batch(task, option)
    right, *others = measure([MeasureInput(task.target, task, config) for config in task.space.configs])
    assert right.status is Status.OK
    reasons = ["not a data parallel block iter", "lookup", "own", "knob is 'nope'; expected one of how"]
    for result, reason in zip(others, reasons, strict=True):
        assert result.status is Status.BUILD_ERROR
        assert reason in str(result.reason)


def test_a_template_of_a_script_is_tuned(tmp_path: Path) -> None:
    """No worker can import a definition in `__main__`."""
    command = [sys.executable, str(ROOT / "examples/matmul_template.py"), "64", "4"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=600)
    assert "space of " in done.stdout
    assert float(done.stdout.split("largest error: ")[1]) < 1e-4
    log = load_from_file(tmp_path / "matmul.jsonl")
    assert {one.status for one in log} == {Status.OK}
    assert len({one.config.entity for one in log}) == 4
