"""`tvmconv verify`: its random trials, and its output for right kernels and for every kind of failure."""

from __future__ import annotations

import os
import shlex
import time
from collections import Counter
from collections.abc import Callable
from itertools import product
from pathlib import Path

import msgspec
import pytest
import tvm

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_on
from tvmconv.problem.dtypes import DTYPES, NARROW, QUANTIZED
from tvmconv.problem.errors import WrongResultError
from tvmconv.problem.precision import DEFAULT, WORDS
from tvmconv.schedules.open_sizes import least_planes
from tvmconv.targets import resolve_target
from tvmconv.testing import conformance, trials
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import LAYOUTS, Trial, random_trial

pytestmark = pytest.mark.usefixtures("without_torch")

CPU, SM_90 = resolve_target("llvm"), '{"kind": "cuda", "arch": "sm_90"}'
ZEN_4 = resolve_target({"kind": "llvm", "mcpu": "znver4"})


def drawn(count: int) -> list[ConvWorkload]:
    return [random_trial(Draw(f"0/{number}"), CPU, number)[0].workload for number in range(count)]


def test_trials_are_the_same_everywhere() -> None:
    assert drawn(20) == drawn(20)
    haswell = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "haswell"})
    trial, is_default = random_trial(Draw("3/3"), haswell, 1)
    assert (str(trial.workload), trial.algorithm) == (
        "conv2d 1x8x1x16 -> 1, 6x5 stride 1x4 dilation 1x3 padding 4,7,4,5 bfloat16 + shift+residual",
        "direct",
    )
    assert not is_default


def test_a_further_name_changes_only_the_draws_that_return_it() -> None:
    """An activation or a template that is added leaves most trials as they are."""
    names = ["relu", ("clip", None, 0.25), "gelu", "elu"]
    before, after = ([Draw(seed).by_name(some) for seed in range(1000)] for some in (names, [*names, "silu"]))
    assert before[:6] == [names[1], "gelu", "gelu", names[1], "elu", "gelu"]
    assert min(Counter(before).values()) > 200
    assert 150 < after.count("silu") < 250
    assert all(now in (was, "silu") for was, now in zip(before, after, strict=True))


def test_trials_are_of_every_kind() -> None:
    tally = Counter[str]()
    assert any(random_trial(Draw(f"0/{number}"), CPU, number)[0].open_sizes for number in range(20))
    for workload in drawn(400):
        (r, s), (top, left, bottom, right), epilogue = workload.kernel, workload.padding, workload.epilogue
        kinds = {
            "depthwise": workload.is_depthwise,
            "multiplier": workload.is_depthwise and workload.multiplier > 1,
            "groups": not workload.is_depthwise and workload.groups > 1,
            "dense": workload.groups == 1,
            "one pixel": (workload.height, workload.width) == (1, 1),
            "1x1 kernel": (r, s) == (1, 1),
            "another kernel": r != s,
            "large kernel": max(r, s) > 7,
            "larger than the image": workload.window[0] > workload.height or workload.window[1] > workload.width,
            "stride past kernel": workload.stride[0] > workload.window[0],
            "dilation": max(workload.dilation) > 1,
            "one-sided padding": (top == 0) != (bottom == 0) and (left == 0) != (right == 0),
            "padding past kernel": max(top, bottom) > workload.window[0],
            "batch": workload.batch > 1,
            **{dtype: workload.dtype == dtype for dtype in DTYPES},
            "scale": epilogue.scale,
            "shift": epilogue.shift,
            "residual": epilogue.residual,
            "blocks": not workload.is_in_nchw,
            "half-bounded": (epilogue.low is None) != (epilogue.high is None),
        }
        tally.update(kind for kind, holds in kinds.items() if holds)
    assert len(tally) == len(kinds)
    assert min(tally.values()) >= 4, tally


def test_trials_of_tensor_cores() -> None:
    """Some trials for a GPU that has them use them, in all types, precisions and layouts that they take."""
    target = resolve_target({"kind": "cuda", "arch": "sm_90"})
    trials = [random_trial(Draw(f"0/{number}"), target, number)[0] for number in range(600)]
    found = [trial for trial in trials if trial.algorithm == "tensor"]
    workloads = [trial.workload for trial in found]
    assert {workload.dtype for workload in workloads} == set(DTYPES)
    assert {each.output_storage.name for each in workloads if each.dtype in QUANTIZED} >= {"int8", "uint8", "int32"}
    assert {trial.precision for trial in found if trial.workload.dtype == "float32"} == {"float32", "tf32"}
    for operand, known in enumerate(LAYOUTS):
        layouts = [(each.x_layout, each.weight_layout, each.output_layout)[operand].name for each in workloads]
        assert {*layouts} - {"NCHWc"} == {*known}  # blocks are drawn apart, where they fit
        assert layouts.count(known[0]) >= 5
    assert {workload.groups > 1 for workload in workloads} == {False, True}
    assert {workload.w_shape[1] % 8 == 0 for workload in workloads} == {False, True}


def test_precision_of_trials() -> None:
    """Those of float32 have each word, with NaN and infinities the one that says where these come out."""
    trials = [random_trial(Draw(f"0/{number}"), CPU, number)[0] for number in range(400)]
    single = [trial for trial in trials if trial.workload.dtype == "float32" and trial.sparsity is None]
    assert {trial.precision for trial in single} == set(WORDS)
    assert {trial.precision for trial in single if trial.nonfinite} == {"strict"}
    assert {trial.precision for trial in trials if trial not in single} == {DEFAULT}
    assert any(trial.nonfinite for trial in trials if trial.workload.dtype in NARROW)


@pytest.mark.parametrize(("target", "beside"), [(ZEN_4, {"amx"}), (resolve_target(SM_90), set())], ids=["cpu", "cuda"])
def test_trials_are_by_every_algorithm(target: tvm.target.Target, beside: set[str]) -> None:
    """Those that take few of all convolutions, such as Winograd's, have a share of their own.

    Beside them is one that needs other instructions.
    """
    trials = Counter(random_trial(Draw(f"1/{number}"), target, number)[0].algorithm for number in range(300))
    assert {*algorithms_on(target)} - beside <= {*trials}
    assert min(count for algorithm, count in trials.items() if algorithm not in beside) >= 5, trials


@pytest.mark.parametrize(
    "target", [*map(resolve_target, [{"kind": "llvm", "mcpu": "sapphirerapids"}, SM_90])], ids=["cpu", "cuda"]
)
def test_an_algorithm_is_found_soon(target: tvm.target.Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes one in a hundred of the convolutions that are drawn, or more."""
    monkeypatch.setattr(trials, "MOST_DRAWS", 500)
    for algorithm, number in product(algorithms_on(target), range(20)):
        trial, _ = random_trial(Draw(f"{number}/{algorithm}"), target, number, algorithm=algorithm)
        assert trial.algorithm == algorithm


def test_trials_may_be_of_one_algorithm() -> None:
    trials = [random_trial(Draw(f"0/{number}"), CPU, number, algorithm="winograd")[0] for number in range(5)]
    assert {trial.algorithm for trial in trials} == {"winograd"}
    assert not any(trial.nonfinite for trial in trials)


@pytest.mark.parametrize("target", [CPU, resolve_target(SM_90)], ids=["cpu", "cuda"])
def test_all_trials_may_be_of_open_sizes(target: tvm.target.Target) -> None:
    """They are tried with the least size, and with two past that which the kernel is chosen for."""
    trials = [random_trial(Draw(f"0/{number}"), target, number, opened=True)[0] for number in range(80)]
    assert {trial.algorithm for trial in trials} > {"depthwise", "direct", "im2win", "sparse"}
    for trial in trials:
        assert trial.open_sizes
        for name in trial.open_sizes:
            least, *others = (getattr(workload, name) for workload in trial.workloads)
            assert least == (1 if name == "batch" else least_planes(trial.workload)[name])
            assert others == [max(least, getattr(trial.workload, name) + more) for more in (1, 3)]


@pytest.mark.parametrize(("algorithm", "sparsity"), [("direct", None), ("sparse", 0.8)])
def test_serial_twins_of_kernels_for_any_batch(algorithm: str, sparsity: float | None) -> None:
    workload = ConvWorkload.conv2d((2, 8, 6, 6), (8, 8, 3, 3))
    trial = Trial(workload, algorithm, None, 1, sparsity=sparsity, open_sizes=("batch",))
    how = How(SM_90, twin=True)
    assert conformance.attempt(how, trial, 0) == trial


@pytest.mark.parametrize("options", [["--bounds"], ["--target", SM_90, "--serial-twin"]], ids=["cpu", "serial-twin"])
def test_kernels_are_right(options: list[str]) -> None:
    """Of three examples of the template, and of random convolutions."""
    found = tvmconv_json("verify", *options, "--count", 3, "--seed", 5, "--parallel", 1, "--algorithm", "winograd")
    assert sum(found["tried"].values()) == 3 + 3
    assert found["failures"] == []


FAULTS = {1: "wrong result", 2: "crash", 3: "timeout", 4: "error"}


def test_failures_are_told_and_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sound, described = conformance.attempt, conformance.described

    def attempt(how: How, source: int | Trial, seed: int) -> Trial:
        number = source if isinstance(source, int) else source.operands
        if number == 1:
            raise WrongResultError("3 of 4 elements are wrong")
        if number == 2:
            os.abort()
        if number == 3:
            time.sleep(60)
        if number == 4 and isinstance(source, int):
            raise RuntimeError("out of luck")
        return described(how, source, seed)

    monkeypatch.setattr(conformance, "attempt", attempt)
    monkeypatch.setattr(trials, "examples", lambda *_: [])
    result = tvmconv("verify", "--count", 6, "--parallel", 1, "--timeout", 1)
    assert result.exit_code == 5
    assert "error: 1 x wrong result, 1 x crash, 1 x timeout, 1 x error" in result.stderr
    *lines, last = result.stdout.splitlines()
    assert "6 convolutions" in last
    for line, kind in zip(lines[::2], FAULTS.values(), strict=True):
        assert line.startswith(kind)
    assert "3 of 4 elements are wrong" in lines[0]
    assert "once: right when it was tried again" in lines[6]
    monkeypatch.setattr(conformance, "attempt", sound)
    program, *arguments = shlex.split(lines[1])
    assert program == "tvmconv"
    alone = tvmconv(*arguments)
    assert alone.exit_code == 0, alone.output
    assert "1 convolutions" in alone.stdout


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel is wrong by one element of padding."""
    right, wrong = (
        Trial(ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 3, 3), padding=padding), "depthwise", None, 1, nonfinite=True)
        for padding in [(1, 1, 1, 1), (1, 2, 1, 0)]
    )
    how = How('{"kind": "llvm"}')
    conformance.check(how, right)
    build = conformance.build_kernel
    monkeypatch.setattr(conformance, "build_kernel", lambda problem, *rest: build(right.problem, *rest))
    with pytest.raises(WrongResultError, match="at the wrong indices"):
        conformance.check(how, wrong)
    with pytest.raises(WrongResultError, match="elements are wrong"):
        conformance.check(how, msgspec.structs.replace(wrong, nonfinite=False))


def test_a_batch_that_a_kernel_leaves_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel for any batch is built once, and tried with three; this one is right for a batch of 1 alone."""
    workload = ConvWorkload.depthwise((2, 4, 6, 6), (4, 1, 3, 3))
    trial = Trial(workload, "depthwise", None, 1, open_sizes=("batch",))
    assert [each.batch for each in trial.workloads] == [1, 3, 5]
    built = []
    build = conformance.build_kernel
    monkeypatch.setattr(conformance, "build_kernel", lambda *arguments: built.append(build(*arguments)) or built[-1])
    conformance.check(How('{"kind": "llvm"}'), trial)
    assert len(built) == 1

    class Narrow:
        """A kernel that computes the first image alone."""

        def __getitem__(self, name: str) -> Callable[..., None]:
            return lambda *tensors: built[0].executable[name](*(_first(tensor) for tensor in tensors))

    monkeypatch.setattr(conformance, "build_kernel", lambda *arguments: built[0]._replace(executable=Narrow()))
    with pytest.raises(WrongResultError, match="^with batch 3: "):
        conformance.check(How('{"kind": "llvm"}'), trial)


def _first(tensor: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """Return the first image of a tensor of images, or a weight as it is."""
    shape = tuple(tensor.shape)
    return tensor if shape[1:] == (1, 3, 3) else tensor._create_view((1, *shape[1:]))


def test_workers_use_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM would bind the threads of every process to the same cores."""
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    trial = Trial(ConvWorkload.conv2d((1, 16, 20, 20), (32, 16, 3, 3)), "direct", None, 1)  # spread over threads

    def cores_after() -> list[set[int]]:
        conformance.attempt(How('{"kind": "llvm"}'), trial, 0)
        return [os.sched_getaffinity(int(thread.name)) for thread in Path("/proc/self/task").iterdir()]

    pool = conformance._worker(60)
    try:
        assert all(cores == os.sched_getaffinity(0) for cores in pool.submit(cores_after).result())
    finally:
        pool.shutdown()


def test_wrong_usage() -> None:
    case = msgspec.json.encode({"workload": {}}).decode()
    for arguments, message in [
        (["--serial-twin"], "expected a CUDA target, with --serial-twin"),
        (["--target", SM_90], "needs an NVIDIA GPU"),
        (["--target", SM_90, "--bounds"], "a CPU, or --serial-twin, with --bounds"),
        (["--case", case], "expected the JSON that `tvmconv verify` prints"),
        (["--algorithm", "shallow"], "algorithm is 'shallow'; expected one that takes random convolutions on llvm"),
    ]:
        result = tvmconv("verify", *arguments)
        assert result.exit_code in (2, 7)
        assert message in result.stderr


def test_types_are_those_that_a_gpu_computes_with() -> None:
    """GPUs before sm_80 have no bfloat16."""
    old = resolve_target({"kind": "cuda", "arch": "sm_75"})
    types = {random_trial(Draw(f"4/{number}"), old, number)[0].workload.dtype for number in range(200)}
    assert types == {"float32", "float16", "int8", "uint8"}
