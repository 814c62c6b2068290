"""AutoTVM's names and keywords over tvmconv's tasks: their effects, and their refusals."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload, autotvm, relay
from tvmconv.autotvm import callback, record, templates
from tvmconv.autotvm.measure import MeasureInput, MeasureResult, Stage, Status
from tvmconv.autotvm.measure.protocol import Calls
from tvmconv.autotvm.record import Record, load_from_file
from tvmconv.lowering import KERNEL_NAME, as_scheduled, build
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import backend_named, device_facts, resolve_target

WORKLOAD = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3))
TASK = autotvm.create(WORKLOAD, "llvm")


def trial(index: int, cost: float, stage: Stage = Stage.SEARCH, status: Status = Status.OK) -> Record:
    device = device_facts("llvm")
    assert device is not None
    costs = (cost,) if status is Status.OK else ()
    result = MeasureResult(costs, status, None, 0.1, 1e9, device)
    return Record.of(MeasureInput(TASK.target, TASK, TASK.space.configs[index], stage), result)


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


def runner() -> autotvm.LocalRunner:
    return autotvm.LocalRunner(number=1, repeat=1, min_repeat_ms=0)


def tune(**options: object) -> None:
    """Tune with a right value for each argument but those that are passed."""
    right = {"n_trial": 1, "measure_option": Instant()}
    autotvm.RandomTuner(TASK).tune(**{**right, **options})  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "loss_type": (lambda: autotvm.XGBTuner(TASK, loss_type="rank-binary"), "loss_type is 'rank-binary'; expected"),
    "feature_type": (
        lambda: autotvm.XGBTuner(TASK, feature_type="itervar"),
        "feature_type is 'itervar'; expected knob",
    ),
    "plan_size": (lambda: autotvm.XGBTuner(TASK, plan_size=0), "plan_size is 0; expected an integer of 1"),
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
    "number": (lambda: autotvm.LocalRunner(number=0), "number is 0; expected an integer of 1 or more"),
    "repeat": (lambda: autotvm.LocalRunner(repeat=1.5), "repeat is 1.5; expected an integer"),  # type: ignore[arg-type]
    "min_repeat_ms": (lambda: autotvm.LocalRunner(min_repeat_ms=-1), "min_repeat_ms is -1; expected a number of"),
    "timeout": (lambda: autotvm.LocalRunner(timeout=0), "timeout is 0; expected a number of seconds, above 0"),
    "timeout-of-builds": (lambda: autotvm.LocalBuilder("1"), "timeout is '1'; expected a number"),  # type: ignore[arg-type]
    "cooldown": (lambda: autotvm.LocalRunner(cooldown_interval=-1), "cooldown_interval is -1; expected .*0 or more"),
    "n_parallel": (lambda: autotvm.LocalBuilder(n_parallel=0), "n_parallel is 0; expected an integer of 1"),
    "priority": (
        lambda: autotvm.RPCRunner("key", "localhost", 1, priority=-1),
        "priority is -1; expected an integer of 0 or more",
    ),
    "swapped": (
        lambda: autotvm.measure_option(runner(), "local"),
        "builder is 'a LocalRunner'; expected 'local' or a builder, such as LocalBuilder()",
    ),
    "no-runner": (
        lambda: autotvm.measure_option("local", None),  # type: ignore[arg-type]
        "runner is 'a NoneType'; expected 'local' or a runner, such as LocalRunner()",
    ),
    "no-task": (lambda: autotvm.RandomTuner(WORKLOAD), "task is .*; expected a task, such as"),  # type: ignore[arg-type]
    "seed": (lambda: autotvm.RandomTuner(TASK, seed=-1), "seed is -1; expected an integer of 0"),
    "n_trial": (lambda: tune(n_trial=-1), "n_trial is -1; expected an integer of 0 or more"),
    "n_trial-of-floats": (lambda: tune(n_trial=1e3), "n_trial is 1000.0; expected an integer"),
    "measure_option": (lambda: tune(measure_option=None), "measure_option is None; expected what measures trials"),
    "early_stopping": (lambda: tune(early_stopping=0), "early_stopping is 0; expected an integer of 1 or more"),
    "callbacks": (
        lambda: tune(callbacks=callback.log_to_file("log.jsonl")),
        "callbacks is 'a function'; expected a list of functions",
    ),
    "callbacks-of-names": (lambda: tune(callbacks=["log"]), r"callbacks is \['log'\]; expected a list of functions"),
    "tasks-callbacks": (
        lambda: autotvm.tune_tasks([TASK], "log.jsonl", Instant(), callbacks=print),  # type: ignore[arg-type]
        "callbacks is 'a builtin_function_or_method'; expected a list",
    ),
    "no-folder": (
        lambda: callback.log_to_file("nowhere/log.jsonl"),
        "log is 'nowhere/log.jsonl'; expected a file in a folder that exists",
    ),
    "a-folder": (lambda: callback.log_to_file("tests"), "log is 'tests'; expected a file, not a folder"),
    "a-stream": (lambda: callback.log_to_file(sys.stdout), "log is .*; expected the path"),  # type: ignore[arg-type]
    "history-by-path": (
        lambda: autotvm.XGBTuner(TASK).load_history("log.jsonl"),  # type: ignore[arg-type]
        "records is 'log.jsonl'; expected records, as record.load_from_file reads them",
    ),
    "history-of-another": (
        lambda: autotvm.RandomTuner(TASK).load_history([1]),  # type: ignore[list-item]
        "records is 'a list of int'; expected records",
    ),
    "trial-without-target": (
        lambda: MeasureInput(TASK, TASK.space.default, Stage.SEARCH),  # type: ignore[arg-type]
        r"task is .*; expected a task, as in MeasureInput\(task.target, task, config\)",
    ),
    "trial-of-another-target": (
        lambda: MeasureInput(resolve_target({"kind": "cuda", "arch": "sm_80"}), TASK, TASK.space.default),
        "target is '.*cuda.*'; expected the target of the task",
    ),
    "empty-records": (lambda: autotvm.apply_history_best([]), r"records is \[\]; expected .* list of at least one"),
    "records-themselves": (
        lambda: autotvm.apply_history_best([trial(0, 1e-6)]),  # type: ignore[list-item]
        "records is 'a list of Record'; expected paths of tuning logs",
    ),
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


GONE: dict[str, tuple[Callable[..., object], str]] = {
    "num_threads": (autotvm.XGBTuner, "one thread trains the model"),
    "optimizer": (autotvm.XGBTuner, "scores the whole space"),
    "diversity_filter_ratio": (autotvm.XGBTuner, "unlike each other"),
    "log_interval": (autotvm.XGBTuner, "the logger 'autotvm'"),
    "elite_num": (autotvm.GATuner, "the best of all trials"),
    "range_idx": (autotvm.RandomTuner, "all of the space"),
    "trees": (autotvm.XGBTuner, "argument of this name for XGBTuner"),
}


@pytest.mark.parametrize(("keyword", "said"), [(name, said) for name, (_, said) in GONE.items()], ids=GONE)
def test_arguments_of_tuners_that_are_gone(keyword: str, said: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"{keyword} is 1; expected no .*{said}"):
        GONE[keyword][0](TASK, **{keyword: 1})


@pytest.mark.parametrize("keyword", ["build_func", "module_loader", "n_parallel"])
def test_arguments_of_builders_and_runners_that_are_gone(keyword: str) -> None:
    made = autotvm.LocalBuilder if keyword == "build_func" else autotvm.LocalRunner
    with pytest.raises(InvalidArgumentError, match=f"{keyword} is 1; expected no such argument: "):
        made(**{keyword: 1})  # type: ignore[arg-type]


ORDERS: dict[str, tuple[Callable[..., object], tuple[object, ...], tuple[str, ...]]] = {
    "MeasureInput": (MeasureInput, (1, 2, 3), ("target", "task", "config")),
    "LocalBuilder": (autotvm.LocalBuilder, (10, 2), ("timeout", "n_parallel")),
    "LocalRunner": (
        autotvm.LocalRunner,
        (10, 4, 3, 0, 0.1, True),
        ("timeout", "number", "repeat", "min_repeat_ms", "cooldown_interval", "enable_cpu_cache_flush"),
    ),
    "RPCRunner": (
        autotvm.RPCRunner,
        ("key", "host", 9190, 1, 10, 2, 4, 3, 0, 0.1),
        (
            *("key", "host", "port", "priority", "timeout", "n_parallel"),
            *("number", "repeat", "min_repeat_ms", "cooldown_interval"),
        ),
    ),
    "XGBTuner": (autotvm.XGBTuner, (1, 64, "knob", "reg"), ("task", "plan_size", "feature_type", "loss_type")),
    "GATuner": (autotvm.GATuner, (1, 100), ("task", "pop_size")),
}


@pytest.mark.parametrize(("made", "values", "names"), ORDERS.values(), ids=ORDERS)
def test_arguments_in_the_order_of_autotvm(
    made: Callable[..., object], values: tuple[object, ...], names: tuple[str, ...]
) -> None:
    assert inspect.signature(made).bind(*values).arguments == dict(zip(names, values, strict=True))


def test_a_runner_takes_its_arguments_in_that_order() -> None:
    runner = autotvm.LocalRunner(7, 4, 3, 2)
    assert (runner.timeout, runner._calls) == (7, Calls(4, 3, 2))
    runner.close()


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        (autotvm, "apply_graph_best", "use tvmconv.build"),
        (autotvm, "register_topi_schedule", "use template"),
        (autotvm, "DropletTuner", "use XGBTuner"),
        (autotvm, "nothing_like_it", "$"),
        (autotvm.callback, "Monitor", "use callback.progress_bar"),
        (autotvm.record, "split_workload", "use record.load_from_file"),
        (autotvm.task, "args_to_workload", "use tvmconv.ConvWorkload"),
        (autotvm.tuner, "ModelBasedTuner", "use XGBTuner"),
        (autotvm.measure, "request_remote", "use RPCRunner"),
        (relay, "create_executor", "use tvmconv.build"),
        (relay, "transform", r"use the Relax passes of TVM on tvmconv.import_model\(...\).mod"),
        (relay, "nothing_like_it", "$"),
        (relay.frontend, "from_tflite", "use relay.frontend.from_onnx"),
        (relay.op, "nn", "use relay.op.get"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_names_that_are_gone_say_what_to_use(module: object, name: str, said: str) -> None:
    with pytest.raises(AttributeError, match=f"module .* has no attribute '{name}'.*{said}"):
        getattr(module, name)


def test_modules_list_their_names() -> None:
    assert dir(autotvm) == sorted(autotvm.__all__)
    assert set(relay.__all__) <= set(dir(relay))


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


def test_callbacks_find_task_target_and_configuration() -> None:
    seen: list[tuple[object, ...]] = []

    def look(tuner: object, inputs: list[MeasureInput], results: list[MeasureResult]) -> None:
        seen.extend((each.target, each.task, each.config) for each in inputs)

    autotvm.GridSearchTuner(TASK).tune(1, Instant(), callbacks=[look])  # type: ignore[arg-type]
    assert set(seen) == {(TASK.target, TASK, TASK.space.default)}
