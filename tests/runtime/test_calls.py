"""Calls of operators: arrays to write to, checks made in every call, and checks made in the first alone."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tests.runtime.kinds_of_arrays import KINDS, OPERANDS, OPTIONS, WORKLOAD, OnlyDLPack, read_only, unaligned
from tvmconv import ConvWorkload, autotvm
from tvmconv.problem.dtypes import NARROW
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import calls, operators
from tvmconv.support.cache import Cache
from tvmconv.testing import check_result, random_operands

torch = pytest.importorskip("torch")

SHAPE, DTYPE = WORKLOAD.operands["output"]
SPARSE = ConvWorkload.conv2d((1, 4, 6, 6), (3, 4, 3, 3), residual=True)
SPARSE_OPERANDS = random_operands(SPARSE)


def depthwise(operands: dict[str, Any], **options: Any) -> Any:
    x, w, scale, shift = (operands[name] for name in ("x", "w", "scale", "shift"))
    return tvmconv.depthwise(x, w, scale=scale, shift=shift, **OPTIONS, **options)


def empty() -> np.ndarray:
    return np.full(SHAPE, np.nan, DTYPE)


@pytest.mark.parametrize("out_kind", ["numpy", "torch", "tvm"])
@pytest.mark.parametrize("kind", KINDS)
def test_out(kind: str, out_kind: str) -> None:
    make, _, _ = KINDS[kind]
    make_out, _, to_numpy = KINDS[out_kind]
    operands, operator = {name: make(array) for name, array in OPERANDS.items()}, tvmconv.compile(WORKLOAD)
    for call in (depthwise, lambda operands, out: operator(*list(operands.values())[:-1], out=out)):
        for _ in range(2):
            out = make_out(empty())
            assert call(operands, out=out) is out
            check_result(WORKLOAD, OPERANDS, to_numpy(out))


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_out_of_sparse_convolutions(kind: str) -> None:
    make, _, to_numpy = KINDS[kind]
    x, residual = (make(SPARSE_OPERANDS[name]) for name in ("x", "residual"))
    conv = tvmconv.sparse_conv2d(SPARSE_OPERANDS["w"], residual=True)
    for call in (conv, conv.operator(SPARSE.x_shape)):
        out = make(np.full(SPARSE.output_shape, np.nan, "float32"))
        assert call(x, residual, out=out) is out
        check_result(SPARSE, SPARSE_OPERANDS, to_numpy(out))
        with pytest.raises(
            InvalidArgumentError,
            match="out is 'memory of residual'; expected an array that shares no memory with an operand",
        ):
            call(x, residual, out=residual)


def no_data() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(SHAPE)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: empty().tolist(), "out is 'list'; expected an array of NumPy, a tensor of torch or one of TVM"),
    "dlpack": (lambda: OnlyDLPack(empty()), "out is 'OnlyDLPack'; expected an array of NumPy, a tensor of torch"),
    "shape": (lambda: empty()[:1], r"out is \(1, 12, 7, 8\); expected the shape \(2, 12, 7, 8\)"),
    "dtype": (lambda: empty().astype("float16"), "out is 'float16'; expected the dtype float32"),
    "objects": (lambda: empty().astype(object), "out is 'ndarray of object'; expected an array that DLPack"),
    "byte-order": (lambda: empty().astype(">f4"), "out is 'ndarray of >f4'; expected an array that DLPack"),
    "read-only": (lambda: read_only(empty()), "out is 'an array that is read-only'; expected one in C order, aligned"),
    "strides": (lambda: np.repeat(empty(), 2, 3)[..., ::2], "out is 'an array that is not contiguous'"),
    "fortran": (lambda: np.asfortranarray(empty()), "out is 'an array that is not contiguous'"),
    "unaligned": (lambda: np.frombuffer(bytearray(empty().nbytes + 1), DTYPE, offset=1).reshape(SHAPE), "not aligned"),
    "torch-strides": (lambda: torch.empty(SHAPE).permute(0, 2, 3, 1), "out is 'a tensor with strides .*; expected one"),
    "torch-expanded": (lambda: torch.empty(1).expand(SHAPE), r"out is 'a tensor with strides \(0, 0, 0, 0\)'"),
    "torch-negative": (lambda: torch._neg_view(torch.empty(SHAPE)), "out is 'a tensor with strides"),
    "torch-shape": (lambda: torch.empty(1, 12, 7, 8), r"out is \(1, 12, 7, 8\); expected the shape"),
    "torch-dtype": (lambda: torch.empty(SHAPE, dtype=torch.float64), "out is 'float64'; expected the dtype float32"),
    "torch-grad": (lambda: torch.empty(SHAPE, requires_grad=True), "out is 'a tensor that requires grad'"),
    "torch-fake": (no_data, "out is 'a FakeTensor without data'"),
    "torch-meta": (lambda: torch.empty(SHAPE, device="meta"), "out is 'a Tensor without data'"),
    "torch-sparse": (lambda: torch.empty(SHAPE).to_sparse(), "out is 'torch.sparse_coo on cpu'"),
    "tvm-shape": (lambda: tvm.runtime.empty((1,), DTYPE), r"out is \(1,\); expected the shape"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_bad_out(bad: str) -> None:
    depthwise(OPERANDS, out=empty())  # a good call does not vouch for the next
    make, message = BAD[bad]
    with pytest.raises(InvalidArgumentError, match=message):
        depthwise(OPERANDS, out=make())


@pytest.mark.parametrize("name", ["x", "w", "scale", "shift"])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_out_on_an_operand(kind: str, name: str) -> None:
    """`out` may not share its last element with an operand, but may lie directly beside it."""
    make, _, to_numpy = KINDS[kind]
    size, array = empty().size, OPERANDS[name]
    memory = np.zeros(size + array.size, DTYPE)
    for shared in (1, 0):
        operand = memory[size - shared :][: array.size].reshape(array.shape)
        operand[...] = array
        out, operands = make(memory[:size].reshape(SHAPE)), {**OPERANDS, name: operand}
        operands = {name: make(array) for name, array in operands.items()}
        if shared:
            with pytest.raises(
                InvalidArgumentError, match=f"out is 'memory of {name}'; expected an array that shares no memory"
            ):
                depthwise(operands, out=out)
            assert np.array_equal(operand, array)
        else:
            check_result(WORKLOAD, OPERANDS, to_numpy(depthwise(operands, out=out)))


def test_out_on_an_operand_that_is_copied_first() -> None:
    """The operand is copied before `out` is written, so that both may share memory."""
    x = OPERANDS["x"]
    memory = np.zeros((4, *SHAPE), DTYPE)
    strided = memory.reshape(-1)[: 2 * x.size : 2].reshape(x.shape)
    assert np.shares_memory(strided, memory)
    strided[...] = x
    check_result(WORKLOAD, OPERANDS, depthwise({**OPERANDS, "x": strided}, out=memory[0]))


def test_autograd_knows_that_out_has_changed() -> None:
    out, weight = torch.ones(SHAPE), torch.ones(SHAPE, requires_grad=True)
    product = out * weight
    depthwise({name: torch.from_numpy(array) for name, array in OPERANDS.items()}, out=out)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_out_in_inference_mode() -> None:
    with torch.inference_mode():
        operands = {name: torch.from_numpy(array) for name, array in OPERANDS.items()}
        check_result(WORKLOAD, OPERANDS, depthwise(operands, out=torch.empty(SHAPE)).numpy())


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the calls that are checked and prepared during the test, beginning with none."""
    found: list[Any] = []
    original = operators.prepare

    def counting(about: Any, *rest: Any) -> calls.Launch:
        found.append(about)
        return original(about, *rest)

    monkeypatch.setattr(operators, "prepare", counting)
    monkeypatch.setattr(operators, "_calls", calls.Calls())
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_calls_with_arrays_that_are_alike_are_prepared_once(kind: str, prepared: list[Any]) -> None:
    make, _, to_numpy = KINDS[kind]
    for seed in range(3):
        operands = random_operands(WORKLOAD, seed)
        check_result(WORKLOAD, operands, to_numpy(depthwise({name: make(array) for name, array in operands.items()})))
    assert len(prepared) == 1


def test_calls_that_differ_are_prepared_each(prepared: list[Any]) -> None:
    x, w = (OPERANDS[name] for name in ("x", "w"))
    narrow = {dtype: [array.astype(dtype) for array in (x, w)] for dtype in NARROW}
    different: list[Callable[[], Any]] = [
        lambda: tvmconv.depthwise(x, w),
        lambda: tvmconv.depthwise(x, w, padding=1),
        lambda: tvmconv.depthwise(x, w, padding=(1, 1)),
        lambda: tvmconv.depthwise(x, w, activation="relu"),
        lambda: tvmconv.depthwise(x, w, scale=OPERANDS["scale"]),
        lambda: tvmconv.depthwise(x, w, shift=OPERANDS["scale"]),
        lambda: tvmconv.depthwise(x[:1], w),
        lambda: tvmconv.depthwise(x, w[:, :1]),
        *(partial(tvmconv.depthwise, *arrays) for arrays in narrow.values()),
        lambda: tvmconv.depthwise(*map(torch.from_numpy, (x, w))),
        lambda: tvmconv.depthwise(x, torch.from_numpy(w)),
        lambda: tvmconv.depthwise(x, w, target="llvm"),
        lambda: tvmconv.depthwise(x, w, target={"kind": "llvm"}),
        lambda: tvmconv.conv2d(x, w.reshape(12, 1, 3, 3), groups=6),
        lambda: tvmconv.depthwise(x, w, out=np.empty((2, 12, 13, 15), "float32")),
    ]
    for number, call in enumerate(different, 1):
        first = call()
        assert len(prepared) == number
        assert np.array_equal(np.asarray(call()), np.asarray(first))
        assert len(prepared) == number


def test_records_that_are_applied_are_part_of_a_call(prepared: list[Any], tmp_path: Any) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    depthwise(OPERANDS)
    with autotvm.apply_history_best(tmp_path / "empty.jsonl"):
        depthwise(OPERANDS)
    depthwise(OPERANDS)
    assert len(prepared) == 2


def test_logs_that_choose_alike_share_a_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A log that is applied after each trial of a tuner leaves no kernels behind."""
    monkeypatch.setattr(operators, "_operators", Cache(8))
    log = tmp_path / "growing.jsonl"
    for number in range(3):
        log.write_text("\n" * number)
        with autotvm.apply_history_best(log):
            depthwise(OPERANDS)
    assert len(operators._operators) == 1


def test_a_target_given_as_an_object_is_not_resolved_in_every_call(
    prepared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tvmconv.compile(WORKLOAD).target
    results = [depthwise(OPERANDS, target=target)]
    monkeypatch.setattr(operators, "resolve_target", None)
    results.append(depthwise(OPERANDS, target=target))
    assert np.array_equal(*results)
    assert len(prepared) == 1


def test_what_is_remembered_is_bounded(prepared: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators._calls, "known", Cache(2))
    x, w = (OPERANDS[name] for name in ("x", "w"))
    expected = [tvmconv.depthwise(x, w, padding=padding) for padding in range(3)]
    for padding in range(3):
        assert len(operators._calls.known) <= 2
        assert np.array_equal(tvmconv.depthwise(x, w, padding=padding), expected[padding])


AWKWARD: dict[str, Callable[[np.ndarray], Any]] = {
    "unaligned": unaligned,
    "read-only": read_only,
    "fortran-order": np.asfortranarray,
    "strided": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "torch-channels-last": lambda array: torch.from_numpy(array).to(memory_format=torch.channels_last),
    "torch-negative": lambda array: torch._neg_view(-torch.from_numpy(array)),
    "torch-at-an-offset": lambda array: torch.from_numpy(np.append(0, array).astype(DTYPE))[1:].view(array.shape),
}


@pytest.mark.parametrize("name", AWKWARD)
def test_an_awkward_array_after_an_ordinary_one(name: str, prepared: list[Any]) -> None:
    make = torch.from_numpy if "torch" in name else np.asarray
    depthwise({name: make(array) for name, array in OPERANDS.items()})
    for seed in range(2):
        operands = random_operands(WORKLOAD, seed)
        given = {name: make(array) for name, array in operands.items()}
        given |= {key: AWKWARD[name](operands[key]) for key in ("x", "w")}
        check_result(WORKLOAD, operands, np.asarray(depthwise(given)))
    assert len(prepared) == (2 if name == "torch-channels-last" else 1)


REFUSED: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "grad": (lambda x, w: tvmconv.depthwise(x, w.requires_grad_()), "w is 'a tensor that requires grad'"),
    "csr": (lambda x, w: tvmconv.depthwise(x, torch.eye(3).to_sparse_csr()), "w is 'torch.sparse_csr on cpu'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_after_a_good_call(name: str) -> None:
    x, w = (torch.from_numpy(OPERANDS[name].copy()) for name in ("x", "w"))
    tvmconv.depthwise(x, w)
    call, message = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=message):
        call(x, w)


def test_a_mode_in_which_new_tensors_are_fake() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    x, w = (torch.from_numpy(OPERANDS[name]) for name in ("x", "w"))
    tvmconv.depthwise(x, w)
    with FakeTensorMode(), pytest.raises(InvalidArgumentError, match="tensors all fake, or none"):
        tvmconv.depthwise(x, w)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", NARROW)
def test_operands_that_are_converted_are_so_in_every_call(dtype: str, kind: str) -> None:
    """A weight in conv2d's form and vectors in a narrow type are converted."""
    make, _, to_numpy = KINDS[kind]
    workload = ConvWorkload.depthwise((1, 4, 6, 6), (4, 2, 3, 3), scale=True, shift=True, dtype=dtype)
    for seed in range(3):
        operands = random_operands(workload, seed)
        operands |= {name: operands[name].astype(dtype) for name in ("scale", "shift")}
        x, w, scale, shift = (make(operands[name]) for name in ("x", "w", "scale", "shift"))
        weight = make(operands["w"].reshape(8, 1, 3, 3))
        widened = operands | {name: operands[name].astype("float32") for name in ("scale", "shift")}
        check_result(workload, widened, to_numpy(tvmconv.depthwise(x, w, scale=scale, shift=shift)))
        check_result(workload, widened, to_numpy(tvmconv.conv2d(x, weight, groups=4, scale=scale, shift=shift)))


FRAMES = 11
"""The largest number of Python functions that a call may run: each takes about a tenth of a microsecond."""


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_call_does_no_work_that_the_one_before_has_done(kind: str) -> None:
    make, _, _ = KINDS[kind]
    x, w = (make(OPERANDS[name]) for name in ("x", "w"))
    operator = tvmconv.compile(ConvWorkload.depthwise(OPERANDS["x"].shape, OPERANDS["w"].shape))
    run: list[str] = []

    def record(frame: Any, event: str, argument: Any) -> None:
        if event == "call":
            run.append(frame.f_code.co_name)

    for call in (lambda: tvmconv.depthwise(x, w), lambda: operator(x, w)):
        call()
        run.clear()
        sys.setprofile(record)
        call()
        sys.setprofile(None)
        assert len(run) <= FRAMES, run


@pytest.mark.parametrize(("callers", "has_out"), [(8, True), (24, False)])
def test_threads_with_outputs_of_their_own(callers: int, has_out: bool) -> None:
    operator, wrong = tvmconv.compile(WORKLOAD), []

    def call(seed: int) -> None:
        operands, out = random_operands(WORKLOAD, seed), empty() if has_out else None
        for _ in range(30):
            try:
                check_result(WORKLOAD, operands, operator(*list(operands.values())[:-1], out=out))
            except AssertionError as error:
                wrong.append(str(error))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
