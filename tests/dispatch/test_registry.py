"""Templates: those of tvmconv keep to the protocol, and one that a test registers is offered everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from tests.dispatch import toy_template
from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload, autotvm, compile, depthwise, dispatch  # noqa: A004
from tvmconv.checking.operands import check_result, random_operands
from tvmconv.dispatch import call, registry
from tvmconv.dispatch.call import Call, problem_from
from tvmconv.dispatch.registry import template_from, to_message
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.schedules import cuda
from tvmconv.targets import backend_of, resolve_target
from tvmconv.testing import conformance, trials

CPU, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
X = (1, 16, 9, 9)
POINTWISE = ConvWorkload.depthwise((2, 16, 9, 12), (16, 1, 1, 1), shift=True, activation="relu")


class Doubling:
    """The toy template with another computation, which is wrong: its outputs are twice as large."""

    VERSION, LAYOUTS, OPEN_SIZES = toy_template.VERSION, toy_template.LAYOUTS, toy_template.OPEN_SIZES
    LEAST = toy_template.LEAST
    Config = toy_template.Config
    obstacle, space, features = map(staticmethod, (toy_template.obstacle, toy_template.space, toy_template.features))
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


def test_its_examples_are_tried_by_verify(toy: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have none, as those that were written before there were any."""
    assert trials.examples(CPU, algorithm="toy") == []
    monkeypatch.setattr(toy_template, "examples", (Problem(POINTWISE),), raising=False)
    (trial,) = trials.examples(CPU, algorithm="toy")
    assert (trial.problem, trial.algorithm, trial.knobs) == (Problem(POINTWISE), "toy", None)
    assert trial in trials.examples(CPU)
    assert trial not in trials.examples(CPU, opened=True)
    conformance.check(conformance.How(str(CPU)), trial)
    assert trials.examples(CPU, opened=True)


def test_dispatch_takes_the_least_estimate(toy: None) -> None:
    assert dispatch.algorithms_for(Problem(POINTWISE), CPU) == ("depthwise", "toy")
    operator = compile(POINTWISE)
    assert operator.selection.name == "cpu/toy"
    operands = random_operands(POINTWISE)
    check_result(POINTWISE, operands, operator(operands["x"], operands["w"], shift=operands["shift"]))
    assert compile(POINTWISE, algorithm="depthwise").selection.name == "cpu/depthwise"
    assert compile(ConvWorkload.depthwise((2, 16, 9, 12), (16, 1, 3, 3))).selection.name == "cpu/depthwise"


@pytest.mark.usefixtures("one_round", "without_torch")
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
    from tvmconv.bench.suite import How, measure_row

    peers = [known_peers()[name] for name in ("tvmconv-depthwise", "tvmconv-toy")]
    row = measure_row("tests", "pointwise", POINTWISE, CPU, peers, How(rounds=1))
    assert {"tvmconv", "tvmconv-depthwise", "tvmconv-toy"} <= row.times.keys()


def test_unregistered_is_unknown() -> None:
    with pytest.raises(InvalidArgumentError, match="template is 'cpu/toy'; expected one of cpu/amx, "):
        dispatch.template_named("cpu/toy")
    result = tvmconv("tune", "--workload", POINTWISE.to_json(), "--algorithm", "toy", "-o", "log")
    assert result.exit_code == 2
    known = (
        "auto, amx, depthwise, depthwise_dot, direct, dot, im2win, input_gradient, pointwise, weight_gradient, winograd"
    )
    assert f"'toy' is not one of {known}" in result.stderr
    with pytest.raises(InvalidArgumentError, match="algorithm is 'toy'; expected auto or depthwise"):
        compile(POINTWISE, algorithm="toy")


SM_75, GROUPED = resolve_target({"kind": "cuda", "arch": "sm_75"}), ConvWorkload.conv2d(X, (16, 8, 3, 3), groups=2)
SIXES = ConvWorkload.conv2d(X, (12, 8, 3, 3), groups=2)
DENSE, RAGGED = (ConvWorkload.conv2d(X, (channels, 16, 3, 3)) for channels in (8, 6))
SMALL = ConvWorkload.conv2d((1, 16, 2, 2), (8, 16, 1, 1))
IMAGES = ConvWorkload.conv2d((1300, 3, 512, 512), (4, 3, 1, 1), stride=4, dtype="float16")
WINDOWS = ConvWorkload.conv2d((96, 64, 256, 256), (64, 64, 7, 7), padding=3)


def blocked(workload: ConvWorkload, output: str = "NCHW8c") -> Problem:
    return Problem(msgspec.structs.replace(workload, layout="NCHW8c", out_layout=output))


@pytest.mark.parametrize(
    ("problem", "target", "algorithm", "why"),
    [
        (Problem(RAGGED), SM_90, "tensor", "cuda/tensor takes output channels in multiples of 4, not 6"),
        (Problem(SIXES), SM_90, "tensor", "cuda/tensor takes output channels of a group in multiples of 4, not 6"),
        (Problem(DENSE), SM_75, "tensor", "cuda/tensor needs a GPU with tensor cores, sm_80 or later, not sm_75"),
        (Problem(DENSE, precision="strict"), SM_90, "tensor", "cuda/tensor is not for the precision strict"),
        (Problem(POINTWISE), SM_90, "tensor", "cuda/tensor is for dense convolutions"),
        (
            Problem(IMAGES),
            SM_90,
            "tensor",
            "cuda/tensor takes operands of fewer than 2^31 elements, as it lays them out",
        ),
        (Problem(WINDOWS), SM_90, "im2win", "cuda/im2win takes windows of fewer than 2^31 elements together"),
        (Problem(POINTWISE), SM_90, "im2win", "cuda/im2win is for dense convolutions"),
        (Problem(DENSE.in_nhwc()), SM_90, "direct", "cuda/direct takes x in NCHW, not NHWC"),
        (Problem(DENSE), SM_90, "depthwise", "cuda/depthwise is for depthwise convolutions"),
        (Problem(DENSE), SM_90, "sparse", "cuda/sparse is for weights that are compiled in"),
        (Problem(DENSE), CPU, "pointwise", "cpu/pointwise takes 1x1 kernels with a stride of 1 and without padding"),
        (Problem(SMALL), CPU, "pointwise", "cpu/pointwise takes planes of 16 pixels or more, not 4"),
        (Problem(POINTWISE), CPU, "pointwise", "cpu/pointwise is for dense convolutions"),
        (Problem(DENSE), CPU, "depthwise", "cpu/depthwise is for depthwise convolutions"),
        (Problem(DENSE), CPU, "sparse", "cpu/sparse is for weights that are compiled in"),
        (Problem(POINTWISE), CPU, "direct", "cpu/direct is for dense convolutions"),
        (Problem(POINTWISE), CPU, "im2win", "cpu/im2win is for dense convolutions"),
        (blocked(DENSE), CPU, "im2win", "cpu/im2win takes x in NCHW, not NCHWc"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_refused_algorithm_says_which_condition_fails(
    problem: Problem, target: tvm.target.Target, algorithm: str, why: str
) -> None:
    with pytest.raises(InvalidArgumentError) as error:
        dispatch.templates_for(problem, target, algorithm)
    told = str(error.value)
    assert told.startswith(f"algorithm is {algorithm!r}; expected auto or ")
    assert told.endswith(f", for {problem} on {target.kind.name}: {why}")


@pytest.mark.parametrize(
    ("problem", "target", "why"),
    [
        (
            Problem(RAGGED.in_nhwc()),
            SM_90,
            [
                "cuda/matvec takes 1x1 kernels on images of one pixel, without padding",
                "cuda/tensor takes output channels in multiples of 4, not 6",
                "cuda/winograd takes output channels in multiples of 4, not 6",
                "cuda/linear takes 1x1 kernels on images of one pixel, without padding",
            ],
        ),
        (
            Problem(DENSE.in_nhwc(), precision="tf32"),
            SM_75,
            [
                "cuda/matvec takes 1x1 kernels on images of one pixel, without padding",
                "cuda/tensor needs a GPU with tensor cores, sm_80 or later, not sm_75",
                "cuda/winograd takes 32 input channels or more for 3x3 kernels, not 16",
                "cuda/linear takes 1x1 kernels on images of one pixel, without padding",
            ],
        ),
        (
            blocked(GROUPED),
            CPU,
            [
                "cpu/depthwise is for depthwise convolutions",
                "cpu/direct takes one group in blocks of channels, not 2",
                "cpu/winograd is for dense convolutions of one group",
            ],
        ),
        (
            blocked(ConvWorkload.depthwise(X, (16, 2, 3, 3))),
            CPU,
            [
                "cpu/depthwise takes one output for each channel in blocks of channels, not 2",
                "cpu/direct is for dense convolutions",
                "cpu/winograd is for dense convolutions of one group",
            ],
        ),
        (
            blocked(POINTWISE, "NCHW"),
            CPU,
            [
                "cpu/depthwise takes one layout for x and output, not NCHW8c to NCHW",
                "cpu/direct is for dense convolutions",
                "cpu/winograd is for dense convolutions of one group",
            ],
        ),
        (
            blocked(DENSE),
            SM_90,
            ["cuda/tensor takes blocks of the 16 channels of a group, not the layout NCHW8c"],
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, Problem) else "",
)
def test_refused_layout_says_which_conditions_fail(problem: Problem, target: tvm.target.Target, why: list[str]) -> None:
    """The error has a condition of each template that takes the layouts, in the order of the templates."""
    with pytest.raises(InvalidArgumentError) as error:
        dispatch.templates_for(problem, target)
    told, _, reasons = str(error.value).partition(f" on {target.kind.name}: ")
    assert told.startswith(f"layout is {problem.workload.layouts!r}; expected NCHW to NCHW, as the others have no ")
    have_layouts = [
        f"{backend_of(target).templates}/{algorithm}"
        for algorithm in dispatch.algorithms_on(target)
        for template in [dispatch.template_named(f"{backend_of(target).templates}/{algorithm}")]
        if "forward" in registry.directions_of(template) and template.LAYOUTS.obstacle(problem.workload) is None
    ]
    assert [reason.split()[0] for reason in reasons.split("; ")] == have_layouts
    assert [reason for reason in reasons.split("; ") if reason in why] == why


def test_refused_workload_says_which_conditions_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {"cpu/toy": toy_template})
    with pytest.raises(InvalidArgumentError) as error:
        dispatch.templates_for(Problem(DENSE), CPU)
    why = "expected one with a kernel on llvm: cpu/toy is for depthwise 1x1 kernels"
    assert str(error.value) == f"workload is '{DENSE}'; {why}"


def test_open_size_is_refused_where_no_template_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for template in (cuda.depthwise.template, cuda.direct.template, cuda.im2win.template, cuda.tensor.template):
        monkeypatch.setattr(template, "OPEN_SIZES", ("batch",))
    with pytest.raises(
        InvalidArgumentError, match="^workload is .*: cuda/depthwise takes no height that is left open; "
    ):
        dispatch.templates_for(Problem(DENSE, open_sizes=("height",)), SM_90)


def test_template_needs_every_name() -> None:
    with pytest.raises(
        InvalidArgumentError, match="an object that has VERSION, Config, LAYOUTS, OPEN_SIZES, LEAST, obstacle, "
    ):
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
        call.redefine("test/again", function)
        messages.append(Call("test/again", "[]").to_json())
    for message, expected in zip([*messages, messages[0]], (1, 2, 1), strict=True):
        assert problem_from(message) == Call("test/again", "[]")
        assert call.function_named("test/again")() == expected


@pytest.mark.parametrize(
    ("name", "changes", "expected"),
    [
        ("cuda/tensor", {}, True),
        ("cuda/linear", {}, True),
        ("cuda/tensor", {"teams": 1}, False),
        ("cuda/direct", {}, False),
        ("cpu/direct", {}, False),
    ],
)
def test_a_selection_says_whether_its_kernel_takes_strided_rows(
    name: str, changes: dict[str, int], expected: bool
) -> None:
    """The copy engine, which teams of warps wait for, takes none."""
    template = dispatch.TEMPLATES[name]
    selection = dispatch.Selection(template, replace(template.LEAST, **changes), "of this test", name)
    assert selection.takes_strided_rows is expected
    assert selection.layouts is template.LAYOUTS
