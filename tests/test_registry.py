"""Templates: those of tvmconv keep to the protocol, and one that a test registers is offered everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, isfinite
from pathlib import Path

import pytest
import toy_template
import tvm
import tvm_ffi
from command_line import tvmconv, tvmconv_json
from tensor_cases import layer
from tvm import tirx
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload, autotvm, compile, depthwise, dispatch  # noqa: A004
from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import functions
from tvmconv.dispatch.call import Call, problem_from
from tvmconv.dispatch.registry import TEMPLATES, template_from, to_message
from tvmconv.errors import InvalidArgumentError
from tvmconv.problem import Problem
from tvmconv.targets import resolve_target

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
POINTWISE = ConvWorkload.depthwise((2, 16, 9, 12), (16, 1, 1, 1), shift=True, activation="relu")
PROBLEMS = {
    "depthwise": Problem(ConvWorkload.depthwise((2, 16, 9, 12), (16, 1, 3, 3))),
    "pointwise": Problem(ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 1, 1))),
    "sparse": Problem(ConvWorkload.conv2d((2, 16, 9, 12), (32, 16, 3, 3)), 0.9),
    "half precision with channels last": layer((2, 16, 9, 12), (32, 16, 3, 3)),
}


class Doubling:
    """The toy template with another computation, which is wrong: its outputs are twice as large."""

    VERSION, LAYOUTS, LEAST = toy_template.VERSION, toy_template.LAYOUTS, toy_template.LEAST
    Config = toy_template.Config
    supports, space, features = map(staticmethod, (toy_template.supports, toy_template.space, toy_template.features))
    default_config, estimate, ablations = map(
        staticmethod, (toy_template.default_config, toy_template.estimate, toy_template.ablations)
    )

    def schedule(self, problem: Problem, config: toy_template.Config, target: tvm.target.Target) -> Schedule:
        """Return the computation of `toy_template` with each output doubled."""
        sch = toy_template.schedule(problem, config, target)
        func = tvm_ffi.structural_map(sch.mod["main"], (tirx.BufferStore, doubled))
        return Schedule(func)


def doubled(store: tirx.BufferStore) -> tirx.BufferStore:
    """Return the store of twice the number, if it is into the output."""
    if not store.buffer.name.startswith("output"):
        return store
    return tirx.BufferStore(store.buffer, store.value * 2, store.indices)


@pytest.fixture
def toy() -> Iterator[None]:
    """Register a template of the test's own."""
    dispatch.register("cpu/toy", toy_template)
    yield
    dispatch.unregister("cpu/toy")


@pytest.mark.parametrize("name", TEMPLATES)
def test_template_says_what_a_problem_takes(name: str) -> None:
    """Each supports one of the problems at least; there its default is legal, and has an estimate and ablations."""
    template, target = TEMPLATES[name], SM_90 if name.startswith("cuda/") else CPU
    supported = [
        problem
        for problem in PROBLEMS.values()
        if template.LAYOUTS.take(problem.workload) and template.supports(problem, target)
    ]
    assert supported
    for problem in supported:
        config = template.default_config(problem, target)
        assert isinstance(config, template.Config)
        assert not template.space(problem, target).violated(config)
        assert 0 < template.estimate(problem, config, target) < inf
        assert all(isfinite(value) for value in template.features(problem, config, target).values())
        assert any(other != config for other in template.ablations(config).values())


def test_dispatch_takes_the_least_estimate(toy: None) -> None:
    assert dispatch.algorithms_for(Problem(POINTWISE), CPU) == ("depthwise", "toy")
    operator = compile(POINTWISE)
    assert operator.selection.name == "cpu/toy"
    operands = random_operands(POINTWISE)
    check_result(POINTWISE, operands, operator(operands["x"], operands["w"], shift=operands["shift"]))
    assert compile(POINTWISE, algorithm="depthwise").selection.name == "cpu/depthwise"
    assert compile(PROBLEMS["depthwise"].workload).selection.name == "cpu/depthwise"


def test_tuner_tunes_it(toy: None, builder: autotvm.LocalBuilder, tmp_path: Path) -> None:
    """In worker processes, which are sent the template; its records are used from then on."""
    log, task = tmp_path / "toy.jsonl", autotvm.task.create(POINTWISE, "llvm", "toy")
    runner = autotvm.LocalRunner(number=1, repeat=1)
    autotvm.tune_tasks([task], log, autotvm.measure_option(builder, runner), tuner="grid", trials=2)
    runner.close()
    records = autotvm.record.load_from_file(log).records
    assert {record.template for record in records} == {"cpu/toy"}
    assert {record.status.value for record in records} == {"ok"}
    assert {record.knobs["parallel"] for record in records} == {False, True}
    with autotvm.apply_history_best(log):
        assert compile(POINTWISE).selection.reason.startswith("tuned: ")


def test_command_line_and_benchmarks_offer_it(toy: None, tmp_path: Path) -> None:
    plan = ["tune", "--workload", POINTWISE.to_json(), "--algorithm", "toy", "-o", tmp_path / "log", "--dry-run"]
    assert "cpu/toy" in str(tvmconv_json(*plan))
    from tvmconv.bench.peers import known_peers
    from tvmconv.bench.suite import measure_row

    peers = [known_peers()[name] for name in ("tvmconv-depthwise", "tvmconv-toy")]
    row = measure_row("tests", "pointwise", POINTWISE, CPU, peers, rounds=1, cold=False)
    assert {"tvmconv", "tvmconv-depthwise", "tvmconv-toy"} <= row.times.keys()


def test_unregistered_is_unknown() -> None:
    with pytest.raises(InvalidArgumentError, match="template is 'cpu/toy'; expected one of cpu/depthwise, "):
        dispatch.template_named("cpu/toy")
    result = tvmconv("tune", "--workload", POINTWISE.to_json(), "--algorithm", "toy", "-o", "log")
    assert result.exit_code == 2
    assert "'toy' is not one of auto, depthwise, direct, im2win, pointwise" in result.stderr
    with pytest.raises(InvalidArgumentError, match="algorithm is 'toy'; expected auto or depthwise"):
        compile(POINTWISE, algorithm="toy")


def test_template_needs_every_name() -> None:
    with pytest.raises(InvalidArgumentError, match="an object that has VERSION, Config, LAYOUTS, LEAST, supports, "):
        dispatch.register("cpu/toy", object())  # type: ignore[arg-type]


def test_config_belongs_to_one_template(toy: None) -> None:
    """The template of a given configuration is found by its class."""
    with pytest.raises(InvalidArgumentError, match="expected a class of its own: it is that of cpu/toy"):
        dispatch.register("cpu/another", toy_template)


def test_calls_take_what_is_registered_by_then() -> None:
    """A kernel that calls have kept is not used when the templates are others."""
    operands = random_operands(ConvWorkload.depthwise((1, 3, 4, 5), (3, 1, 1, 1)))
    before = depthwise(operands["x"], operands["w"])
    dispatch.register("cpu/toy", Doubling())
    assert depthwise(operands["x"], operands["w"]) == pytest.approx(2 * before)
    dispatch.unregister("cpu/toy")
    assert depthwise(operands["x"], operands["w"]) == pytest.approx(before)


def test_operator_keeps_the_name_of_its_template(toy: None) -> None:
    operator = compile(POINTWISE)
    dispatch.unregister("cpu/toy")
    assert repr(operator).endswith("by cpu/toy>")
    dispatch.register("cpu/toy", toy_template)


@pytest.mark.parametrize("name", ["toy", "rocm/toy", "cpu/", "cpu/to y", "cpu/auto", "cpu/direct"])
def test_names_that_cannot_be_registered(name: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"name is {name!r}; expected"):
        dispatch.register(name, toy_template)


def test_templates_for_another_process(toy: None) -> None:
    assert to_message("cpu/direct") == "cpu/direct"
    message = to_message("cpu/toy")
    dispatch.unregister("cpu/toy")
    assert template_from(message).VERSION == toy_template.VERSION
    assert dispatch.template_named("cpu/toy").VERSION == toy_template.VERSION
    dispatch.register("cpu/toy", Doubling())
    again = to_message("cpu/toy")
    template_from(message)
    assert isinstance(template_from(again), Doubling)  # the last that came, though the name is known


def test_a_function_that_comes_again_replaces_the_one_before() -> None:
    """A client edits its template between two runs, and the process that builds for it lives on."""

    def before() -> int:
        return 1

    def after() -> int:
        return 2

    messages = []
    for function in (before, after):
        functions.redefine("test/again", function)
        messages.append(Call("test/again", "[]").to_json())
    for message, expected in zip([*messages, messages[0]], (1, 2, 1), strict=True):
        assert problem_from(message) == Call("test/again", "[]")
        assert functions.function_named("test/again")() == expected
