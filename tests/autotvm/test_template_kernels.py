"""Kernels of templates of one's own: compared with their computation, refused, and sent to other processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm import te
from tvm.s_tir import Schedule

from tests.shared.templates_of_tests import matmul, on_llvm, product
from tvmconv import autotvm
from tvmconv.autotvm.measure import MeasureInput
from tvmconv.autotvm.measure.builder import LocalBuilder
from tvmconv.autotvm.templates import TemplateTask, create_task
from tvmconv.autotvm.templates.kernels import assert_same
from tvmconv.dispatch import call
from tvmconv.dispatch.call import problem_from
from tvmconv.problem.errors import InvalidArgumentError, WrongResultError
from tvmconv.targets import nvidia, resolve_target

pytestmark = pytest.mark.usefixtures("without_torch")

ROOT = Path(__file__).parents[2]
TASK = create_task("test/matmul", (32, "float32"), "llvm")


def test_softmax_on_cuda_is_right_as_its_serial_twin(builder: LocalBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import softmax_template  # noqa: F401 (it defines the template)

    monkeypatch.setattr(nvidia, "gpu", lambda number: None)
    task = create_task("example/softmax", (6, 256), {"kind": "cuda", "arch": "sm_90"})
    assert task.flop == 6 * 256 * 4
    for config in (task.space.configs[0], task.space.configs[7]):
        task.check(config)
    built = builder.build(
        MeasureInput(task.target, task, task.space.configs[7])
    ).result()  # for a GPU, which building does not need
    assert Path(built.library).is_file()


def test_a_twin_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda number: None)
    wrong = create_task("test/another-product", (16,), {"kind": "cuda", "arch": "sm_90"})
    with pytest.raises(WrongResultError, match=r"test/another-product\(16\) with k=1: .* elements of C are wrong"):
        wrong.check()


def test_blocks_of_too_many_threads_are_refused_before_they_are_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvidia, "gpu", lambda number: None)

    def bound(threads: int) -> tuple[Schedule, list[te.Tensor]]:
        a = te.placeholder((8, 4096), name="A")
        b = te.compute((8, 4096), lambda i, j: a[i, j] + 1, name="B")
        sch = Schedule(te.create_prim_func([a, b]))
        row, column = sch.get_loops(sch.get_sblock("B"))
        sch.bind(row, "threadIdx.y")
        sch.bind(sch.split(column, factors=[None, threads])[1], "threadIdx.x")
        return sch, [a, b]

    defined(bound, "test/bound")
    target = {"kind": "cuda", "arch": "sm_90"}
    create_task("test/bound", (128,), target).check()
    with pytest.raises(InvalidArgumentError, match="threads of a block is 2048; expected at most 1024"):
        create_task("test/bound", (256,), target).check()


DTYPES = ["float16", "float64", "int8", "int32", "uint8"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str) -> None:
    create_task("test/matmul", (16, dtype), "llvm").check()


def test_the_comparison_can_fail() -> None:
    exact = np.random.default_rng(0).standard_normal((8, 8)).astype("float32")
    assert_same("C", exact * np.float32(1 + 1e-6), exact, 1e-5)
    for wrong in (exact * np.float32(1.001), np.where(exact == exact.max(), np.nan, exact), exact.T):
        with pytest.raises(AssertionError, match="elements of C are wrong"):
            assert_same("C", wrong.astype("float32"), exact, 1e-5)
    with pytest.raises(AssertionError, match="1 of 2"):
        assert_same("C", np.array([1, 2]), np.array([1, 3]), 1.0)
    infinite = np.array([np.inf, np.nan, 1.0])
    assert_same("C", infinite, infinite, 0.0)
    with pytest.raises(AssertionError):
        assert_same("C", np.array([-np.inf, np.nan, 1.0]), infinite, 1.0)


def defined(function: Callable[..., Any], name: str = "test/refused") -> Callable[..., Any]:
    """Define a template under a name of its own."""
    call._functions.pop(name, None)
    decorated: Callable[..., Any] = autotvm.template(name)(function)
    return decorated


def test_two_templates_of_one_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"task_name is 'test/matmul'; expected a name that no other has"):
        autotvm.template("test/matmul")(lambda n: None)


def without_a_result() -> None:
    autotvm.get_config().define_knob("k", [1])


def without_arguments() -> Schedule:
    return Schedule(te.create_prim_func(product(8, "float32")))


def with_other_arguments() -> tuple[Schedule, list[te.Tensor]]:
    return Schedule(te.create_prim_func(product(8, "float32"))), product(9, "float32")


def with_a_size_left_open() -> tuple[Schedule, list[te.Tensor]]:
    a = te.placeholder((te.var("n"),), name="A")
    b = te.compute(a.shape, lambda i: a[i] + 1, name="B")
    return Schedule(te.create_prim_func([a, b])), [a, b]


def with_inputs_alone() -> tuple[Schedule, list[te.Tensor]]:
    return Schedule(te.create_prim_func(product(8, "float32"))), product(8, "float32")[:2]


def with_a_loop_of_another_block() -> tuple[Schedule, list[te.Tensor]]:
    a = te.placeholder((8,), name="A")
    b = te.compute((8,), lambda i: a[i] + 1, name="B")
    c = te.compute((8,), lambda i: b[i] * 2, name="C")
    sch = Schedule(te.create_prim_func([a, c]))
    cfg = autotvm.get_config()
    cfg.define_split("tile", 8, num_outputs=2)
    cfg["tile"].apply(sch, sch.get_sblock("C"), sch.get_loops(sch.get_sblock("B"))[0])
    return sch, [a, c]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (without_a_result, r"result is None; expected .s_tir.Schedule, .te.Tensor, ....."),
        (without_arguments, r"result is 'Schedule'; expected"),
        (with_other_arguments, r"arguments is .* expected those of the schedule of test/refused"),
        (with_a_size_left_open, r"shape of A is \['n'\]; expected sizes that are numbers"),
        (with_inputs_alone, r"arguments is \['A', 'B'\]; expected an output"),
        (with_a_loop_of_another_block, r"loop is 'i'; expected a loop around C"),
    ],
)
def test_templates_that_return_something_else(function: Callable[[], object], message: str) -> None:
    defined(function)
    with pytest.raises(InvalidArgumentError, match=message):
        create_task("test/refused", (), "llvm")


def test_what_is_refused() -> None:
    for wrong, message in (
        (lambda: autotvm.task.create("test/nothing", (8,), "llvm"), "task_name is 'test/nothing'; expected a template"),
        (lambda: autotvm.task.create("test/matmul", (8, "float32"), None), "target is None; expected what"),
        (lambda: autotvm.task.create("test/matmul", "llvm", "llvm"), "args is 'llvm'; expected a tuple"),
        (lambda: autotvm.task.create("test/matmul", (np.zeros(1),), "llvm"), r"args\[0\] is .*; expected a finite num"),
        (lambda: autotvm.task.create("test/matmul", ((8, {}),), "llvm"), r"args\[0\]\[1\] is \{\}"),
        (lambda: autotvm.task.create("test/matmul", (float("nan"),), "llvm"), r"args\[0\] is nan"),
        (lambda: autotvm.task.create("test/matmul", (2**70,), "llvm"), r"args\[0\] is 1180591620717411303424"),
        (lambda: matmul(8, "float32"), "target is None; expected a template called in .with tvm.target.Target"),
        (lambda: on_llvm(lambda: matmul(8, dtype="float32")), r"arguments is \['dtype'\]; expected those of test/mat"),
        (autotvm.get_config, "expected get_config.. called by a function with @autotvm.template"),
        (lambda: autotvm.template("")(without_a_result), "task_name is ''"),
        (lambda: autotvm.template("test/class")(dict), "expected a function"),
        (lambda: create_task("test/matmul", (16, "bfloat16"), "llvm").check(), "dtype of A is 'bfloat16'"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            wrong()


def test_a_function_that_cannot_be_sent_is_named() -> None:
    import threading

    lock = threading.Lock()

    def locked(n: int) -> tuple[Schedule, list[te.Tensor]]:
        with lock:
            return Schedule(te.create_prim_func(product(n, "float32"))), product(n, "float32")

    defined(locked, "test/locked")
    task = create_task("test/locked", (8,), "llvm")
    with pytest.raises(
        InvalidArgumentError, match=r"template is 'test/locked'; expected one that uses what can be sent"
    ):
        task.problem.to_json()


def test_a_call_survives_its_way_to_another_process() -> None:
    call = problem_from(TASK.problem.to_json())
    assert call == TASK.problem
    assert TemplateTask(call, resolve_target("llvm")).space.configs == TASK.space.configs
    assert create_task("test/matmul", [32, "float32"], "llvm").problem == TASK.problem
    assert [str(create_task("test/large", (n,), "llvm")) for n in (8, 9)] == ["test/large(8)", "test/large(9)"]
