"""AutoTVM's names and keywords over tvmconv's tasks: their effects, and their refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm
from network_graph import Graph

import tvmconv
from tvmconv import ConvWorkload, autotvm, relay
from tvmconv.autotvm import callback, record, templates
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.record import Record, load_from_file
from tvmconv.errors import InvalidArgumentError
from tvmconv.lowering import KERNEL_NAME, as_scheduled, build
from tvmconv.targets import backend_named, device_facts, resolve_target

WORKLOAD = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3))
TASK = autotvm.create(WORKLOAD, "llvm")


def trial(place: int, cost: float, stage: Stage = Stage.SEARCH, status: Status = Status.OK) -> Record:
    device = device_facts("llvm")
    assert device is not None
    costs = (cost,) if status is Status.OK else ()
    result = MeasureResult(costs, status, None, 0.1, 1e9, device)
    return Record.of(MeasureInput(TASK, TASK.space.configs[place], stage), result)


def test_every_name_is_there() -> None:
    for name in autotvm.__all__:
        assert getattr(autotvm, name) is not None
    assert autotvm.template is templates.template
    assert autotvm.tuner.XGBTuner is autotvm.XGBTuner
    assert autotvm.task.create is autotvm.create
    assert autotvm.apply_history_best is autotvm.ApplyHistoryBest
    assert len(TASK.config_space) == len(TASK.space.configs)
    assert str(TASK.config_space).startswith(f"space of {len(TASK.space.configs)} configurations\n  tiles: ")
    assert TASK.flop == WORKLOAD.flops


def test_tasks_of_a_program() -> None:
    graph = Graph((1, 4, 14, 14))
    y = graph.conv("x", (8, 4, 3, 3))
    flat = graph.node("Flatten", graph.conv(y, (8, 1, 3, 3), group=8))
    mod, params = relay.frontend.from_onnx(graph.model(graph.node("MatMul", flat, graph.random(800, 10))))
    convolutions = autotvm.task.extract_from_program(
        mod["main"], target="llvm", params=params, ops=(relay.op.get("nn.conv2d"),)
    )
    linear = autotvm.task.extract_from_program(mod, params, "llvm", ops=["nn.dense"])
    both = autotvm.task.extract_from_program(mod["main"], params, target="llvm")
    assert [task.workload.is_depthwise for task in convolutions] == [False, True]
    assert [(task.workload.in_channels, task.workload.out_channels) for task in linear] == [(800, 10)]
    assert [task.problem for task in both] == [task.problem for task in (*convolutions, *linear)]
    for wrong, message in (
        (lambda: autotvm.task.extract_from_program(mod, {"w": 1}, "llvm"), r"params is \['w'\]; expected none"),
        (lambda: autotvm.task.extract_from_program(mod, params), "target is None"),
        (
            lambda: autotvm.task.extract_from_program(mod, {}, "llvm", ops=["nn.softmax"]),
            "ops is 'nn.softmax'; expected",
        ),
        (lambda: mod["other"], "name is 'other'; expected 'main'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            wrong()


def test_the_best_are_picked(tmp_path: Path) -> None:
    log, out = tmp_path / "log.tmp", tmp_path / "best"
    confirmed = [trial(2, 3e-6, Stage.CONFIRM), trial(2, 3.2e-6, Stage.CONFIRM), trial(0, 4e-6, Stage.CONFIRM)]
    record.append(log, [trial(0, 4e-6), trial(1, 1e-6), trial(2, 2e-6), *confirmed, trial(3, 1, status=Status.CRASH)])
    autotvm.record.pick_best(log, out)
    assert load_from_file(out).records == confirmed[:2]
    record.append(out, [trial(5, 1e-7, Stage.CONFIRM)])
    autotvm.record.pick_best(log, out)
    assert [one.config.index for one in load_from_file(out)] == [5]
    assert len(load_from_file(log)) == 7
    with autotvm.apply_history_best(out) as context:
        assert tvmconv.compile(WORKLOAD).selection.config == TASK.space.configs[5]
        assert context.query("llvm", WORKLOAD) == TASK.space.configs[5]
    with autotvm.apply_history_best(out), autotvm.FallbackContext():
        assert tvmconv.compile(WORKLOAD).selection.reason == "default configuration"


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "loss_type": (lambda: autotvm.XGBTuner(TASK, loss_type="rank-binary"), "loss_type is 'rank-binary'; expected"),
    "feature_type": (
        lambda: autotvm.XGBTuner(TASK, feature_type="itervar"),
        "feature_type is 'itervar'; expected knob",
    ),
    "plan_size": (lambda: autotvm.XGBTuner(TASK, plan_size=0), "plan_size is 0; expected at least 1"),
    "pop_size": (lambda: autotvm.GATuner(TASK, pop_size=1), "pop_size is 1; expected at least 2"),
    "mutation_prob": (lambda: autotvm.GATuner(TASK, mutation_prob=2), "mutation_prob is 2; expected a probability"),
    "si_prefix": (lambda: callback.progress_bar(3, si_prefix="X"), "si_prefix is 'X'; expected one of"),
    "builder": (
        lambda: autotvm.measure_option("remote", "local"),
        "builder is 'remote'; expected 'local' or a builder",
    ),
    "runner": (lambda: autotvm.measure_option("local", "remote"), "runner is 'remote'; expected 'local' or a runner"),
    "flush-of-many-calls": (
        lambda: autotvm.LocalRunner(number=10, enable_cpu_cache_flush=True),
        "enable_cpu_cache_flush is True; expected False, or number=1 and min_repeat_ms=0",
    ),
    "workload": (lambda: autotvm.create(WORKLOAD.operands, "llvm"), "workload is .*; expected a ConvWorkload, or the"),  # type: ignore[call-overload]
    "no-records": (lambda: autotvm.apply_history_best(None), "records is None; expected a tuning log, or a list"),  # type: ignore[arg-type]
    "no-log": (
        lambda: autotvm.apply_history_best("nowhere"),
        "records is 'nowhere'; expected a tuning log that exists",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize("keyword", ["num_threads", "optimizer", "diversity_filter_ratio", "log_interval"])
def test_keywords_that_mean_nothing_here_are_no_keywords(keyword: str) -> None:
    with pytest.raises(TypeError, match=keyword):
        autotvm.XGBTuner(TASK, **{keyword: 1})


class Instant:
    """A builder and runner that measure nothing."""

    def measure(self, inputs, started, stop=lambda: False):  # type: ignore[no-untyped-def]
        for each in inputs:
            yield each, MeasureResult((1e-6 * (1 + each.config.rows),), Status.OK, None, 0.1, 1e9, device_facts("llvm"))

    def device(self, task: autotvm.Task) -> object:
        return device_facts("llvm")

    def close(self) -> None: ...


@pytest.mark.parametrize("options", [{"loss_type": "reg"}, {"loss_type": "rank", "plan_size": 4}], ids=str)
def test_losses_and_plans(options: dict[str, object]) -> None:
    tuner = autotvm.XGBTuner(TASK, seed=1, **options)  # type: ignore[arg-type]
    tuner.tune(n_trial=24, measure_option=Instant(), early_stopping=20)  # type: ignore[arg-type]
    assert tuner.batch_size == options.get("plan_size", 8)
    assert tuner.best is not None
    assert tuner.best[0].rows <= TASK.space.default.rows


def test_progress_is_told_in_flops(capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "autotvm")
    shown = autotvm.callback.progress_bar(2, prefix="[Task 1/1]", si_prefix="M")
    autotvm.GATuner(TASK, pop_size=4, seed=1).tune(2, Instant(), callbacks=[shown], si_prefix="M")  # type: ignore[arg-type]
    shown.close()
    best = min(1e-6 * (1 + config.rows) for config in (TASK.space.default,))
    assert "[Task 1/1]: 2/2 trials, best " in capsys.readouterr().err
    first = caplog.messages[0]
    assert first.startswith(f"search 1\tMFLOPS: {WORKLOAD.flops / best / 1e6:.2f}/")
    assert "\tok: " in first


def test_caches_are_flushed_between_repeats() -> None:
    """TVM's function for that gets the kernel's arguments before each repeat, and is not called unasked.

    Times would tell little: on virtual machines calls with flushed caches are at times as fast as others.
    """
    from tvm import te

    x = te.placeholder((16,), name="x")
    func = as_scheduled(te.create_prim_func([x, te.compute((16,), lambda i: x[i] * 2.0, name="y")]), KERNEL_NAME)
    module = build(tvm.IRModule({KERNEL_NAME: func}), resolve_target("llvm")).jit()
    arguments = [tvm.runtime.empty((16,)) for _ in range(2)]

    costs = backend_named("llvm").costs
    flushed: list[int] = []
    original = tvm.get_global_func("cache_flush_cpu_non_first_arg")
    tvm.register_global_func(
        "cache_flush_cpu_non_first_arg", lambda *given: [flushed.append(len(given)), original(*given)][1], override=True
    )
    try:
        costs(module, KERNEL_NAME, arguments, tvm.cpu(), 1, 5, 0, flush=False)
        assert not flushed
        costs(module, KERNEL_NAME, arguments, tvm.cpu(), 1, 5, 0, flush=True)
    finally:
        tvm.register_global_func("cache_flush_cpu_non_first_arg", original, override=True)
    assert flushed == [2] * 5
