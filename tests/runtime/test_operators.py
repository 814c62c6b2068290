"""`tvmconv.depthwise` and compiled operators on every kind of array, and their refusals."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tests.runtime.kinds_of_arrays import KINDS, OPERANDS, OPTIONS, WORKLOAD, OnlyDLPack, read_only, unaligned
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload
from tvmconv.dispatch import template_for
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.runtime import arrays, operators
from tvmconv.runtime.pool import LEAST_BYTES
from tvmconv.support.cache import Cache
from tvmconv.targets import has_gpu, resolve_target
from tvmconv.testing import check_result, random_operands

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kind", KINDS)
def test_result_is_of_the_kind_given(kind: str) -> None:
    make, result_type, to_numpy = KINDS[kind]
    x, w, scale, shift = (make(OPERANDS[name]) for name in ("x", "w", "scale", "shift"))
    result = tvmconv.depthwise(x, w, scale=scale, shift=shift, **OPTIONS)
    assert isinstance(result, result_type)
    check_result(WORKLOAD, OPERANDS, to_numpy(result))


@pytest.mark.parametrize(
    "disguise",
    [unaligned, read_only, np.asfortranarray, lambda a: np.repeat(a, 2, axis=-1)[..., ::2]],
    ids=["unaligned", "read-only", "fortran-order", "strided"],
)
def test_awkward_memory(disguise: Callable[[np.ndarray], np.ndarray]) -> None:
    arrays = {name: disguise(array) for name, array in OPERANDS.items()}
    result = tvmconv.depthwise(arrays["x"], arrays["w"], scale=arrays["scale"], shift=arrays["shift"], **OPTIONS)
    check_result(WORKLOAD, OPERANDS, result)


def test_channels_last_torch_tensor() -> None:
    x, w = (torch.from_numpy(OPERANDS[name]) for name in ("x", "w"))
    expected = tvmconv.depthwise(x, w)
    assert torch.equal(tvmconv.depthwise(x.to(memory_format=torch.channels_last), w), expected)


def test_large_torch_output_is_on_huge_pages_as_numpys_are() -> None:
    """It is a tensor like any other, whose memory torch does not own but which lives as long as it does."""
    x, w = torch.randn(1, 4, 520, 520), torch.randn(4, 1, 3, 3)
    result = tvmconv.depthwise(x, w, padding=1)
    assert result.nbytes > LEAST_BYTES
    torch.testing.assert_close(result, torch.nn.functional.conv2d(x, w, padding=1, groups=4), rtol=1e-4, atol=1e-5)
    assert torch.equal(tvmconv.depthwise(x, w, padding=1), result)


def test_torch_view_with_the_negative_bit() -> None:
    x, w = (torch.from_numpy(OPERANDS[name]) for name in ("x", "w"))
    assert torch.equal(tvmconv.depthwise(torch._neg_view(-x), w), tvmconv.depthwise(x, w))


def test_view_of_a_tensor_at_an_offset() -> None:
    storage = tvm.runtime.tensor(np.concatenate([np.zeros(4, "float32"), X.ravel()]))
    view = storage._create_view(X.shape, "float32", relative_byte_offset=16)
    assert np.array_equal(tvmconv.depthwise(view, W).numpy(), tvmconv.depthwise(X, W))


def test_target_as_a_dict() -> None:
    assert np.array_equal(tvmconv.depthwise(X, W, target={"kind": "llvm"}), tvmconv.depthwise(X, W))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", NARROW)
def test_narrow_types_with_vectors_in_the_type_or_float32(dtype: str, kind: str) -> None:
    make, made, to_numpy = KINDS[kind]
    x, w, scale = (OPERANDS[name].astype(dtype) for name in ("x", "w", "scale"))
    expected = tvmconv.depthwise(x, w, scale=scale.astype("float32"))
    result = tvmconv.depthwise(make(x), make(w), scale=make(scale))
    assert isinstance(result, made)
    assert to_numpy(result).dtype == expected.dtype == STORAGE_TYPES[dtype].numpy
    assert np.array_equal(to_numpy(result), expected)


def test_kernels_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many threads that need one new kernel compile it once, and all get the right result."""
    compiled: list[Problem] = []
    original = operators.compile_problem

    def counting(problem: Problem, *options: Any) -> operators.Operator:
        compiled.append(problem)
        return original(problem, *options)

    monkeypatch.setattr(operators, "compile_problem", counting)
    monkeypatch.setattr(operators, "_operators", Cache(9))
    operators._calls.known.clear()
    results: list[np.ndarray] = []

    def call() -> None:
        results.append(tvmconv.depthwise(OPERANDS["x"], OPERANDS["w"], activation="relu"))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1
    assert len(results) == 8
    assert all(np.array_equal(result, results[0]) for result in results)


X, W = OPERANDS["x"], OPERANDS["w"]


def fake() -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(X.shape)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "list": (lambda: tvmconv.depthwise(X.tolist(), W), "x is 'list'; expected an array"),
    "rank": (lambda: tvmconv.depthwise(X[0], W), "x is .* expected a shape of 4 dimensions"),
    "channels": (lambda: tvmconv.depthwise(X, W[:5]), "w is .* expected 6 channels first"),
    "mixed-dtypes": (lambda: tvmconv.depthwise(X, W.astype("float16")), "w is 'float16'; expected the dtype float32"),
    "integers": (lambda: tvmconv.depthwise(X.astype("int32"), W.astype("int32")), "x is 'int32'; expected an array of"),
    "complex": (
        lambda: tvmconv.depthwise(X.astype("complex64"), W),
        r"x is 'ndarray of complex64'; expected an array that DLPack can share, such as x.astype\('float32'\)",
    ),
    "big-endian": (lambda: tvmconv.depthwise(X.astype(">f2"), W), r"x is 'ndarray of >f2'; .*x.astype\('float16'\)"),
    "objects": (lambda: tvmconv.depthwise(X, W.astype(object)), r"w is 'ndarray of object'; .*w.astype\('float32'\)"),
    "texts": (lambda: tvmconv.depthwise(X.astype("U"), W), r"x is 'ndarray of <U.*x.astype\('float32'\)"),
    "complex-dlpack": (lambda: tvmconv.depthwise(OnlyDLPack(X.astype("complex64")), W), "x is 'OnlyDLPack'; expected"),
    "fake": (lambda: tvmconv.depthwise(fake(), torch.from_numpy(W)), "tensors all fake, or none"),
    "meta": (
        lambda: tvmconv.depthwise(torch.empty(1, 2, 8, 8, device="meta"), torch.eye(4)),
        "w is 'on cpu'; expected a tensor on meta",
    ),
    "nested-stride": (lambda: tvmconv.depthwise(X, W, stride=(1, [1])), r"stride is \(1, \(1,\)\)"),
    "clip-of-lists": (lambda: tvmconv.depthwise(X, W, activation=("clip", [1], 2)), "low of activation 'clip' is "),
    "scale-length": (lambda: tvmconv.depthwise(X, W, scale=np.ones(3, "float32")), r"scale is \(3,\); .* \(12,\)"),
    "scale-dtype": (lambda: tvmconv.depthwise(X, W, scale=np.ones(12)), "scale is 'float64'; expected the dtype"),
    "padding": (lambda: tvmconv.depthwise(X, W, padding="FULL"), "padding is 'FULL'"),
    "nested-padding": (lambda: tvmconv.depthwise(X, W, padding=[[1, 1], [1, 1]]), r"padding is \(\(1, 1\), \(1, 1\)\)"),
    "padding-in-an-array": (lambda: tvmconv.depthwise(X, W, padding=np.ones(2)), r"padding is 'array\(\[1., 1.\]\)'"),
    "activation": (lambda: tvmconv.depthwise(X, W, activation="mish"), "activation is 'mish'"),
    "target": (lambda: tvmconv.depthwise(X, W, target="vulkan"), "target is 'vulkan'"),
    "grad": (
        lambda: tvmconv.depthwise(torch.from_numpy(X).requires_grad_(), torch.from_numpy(W)),
        "x is 'a tensor that requires grad'; expected one without: pass tensor.detach",
    ),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments(bad: str) -> None:
    call, message = BAD[bad]
    with pytest.raises(InvalidArgumentError, match=message):
        call()


LIKE_ONE: dict[str, dict[str, Any]] = {
    "stride": {"stride": 1.0},
    "stride-in-a-pair": {"stride": (1, True), "dilation": (1, 1)},
    "padding": {"padding": True},
    "dilation-in-a-pair": {"stride": (1, 1), "dilation": [1.0, 1]},
}


@pytest.mark.parametrize("name", LIKE_ONE)
def test_what_equals_an_earlier_calls_argument_is_checked_all_the_same(name: str) -> None:
    tvmconv.depthwise(X, W, stride=1, padding=1, dilation=1)
    tvmconv.depthwise(X, W, stride=(1, 1), padding=1, dilation=(1, 1))
    with pytest.raises(InvalidArgumentError, match=f"{name.split('-')[0]} is .*(1.0|True).*; expected"):
        tvmconv.depthwise(X, W, **{"stride": 1, "padding": 1, "dilation": 1, **LIKE_ONE[name]})


EMPTY: dict[str, Callable[[], Any]] = {
    "numpy": lambda: np.ones((0, 2, 4, 4), "float32"),
    "dlpack": lambda: OnlyDLPack(np.ones((0, 2, 4, 4), "float32")),
    "torch": lambda: torch.ones(0, 4, 4, 2).permute(0, 3, 1, 2),
}


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_arrays_have_the_strides_that_kernels_want(kind: str) -> None:
    argument = arrays.operand("x", EMPTY[kind]()).argument
    assert (tuple(argument.shape), tuple(argument.strides)) == ((0, 2, 4, 4), (32, 16, 4, 1))


def test_a_network_on_an_empty_batch() -> None:
    graph = Graph(("n", 2, 4, 4))
    network = tvmconv.build(graph.model(graph.conv("x", (3, 2, 3, 3))))
    for empty in EMPTY.values():  # TVM leaves a sum without terms unwritten
        with pytest.raises(InvalidArgumentError, match=r"x is \(0, 2, 4, 4\); expected the shape of x: float32 \(n, 2"):
            network(empty())


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_cuda_operator_builds_without_a_gpu_and_says_what_running_needs() -> None:
    operator = tvmconv.compile(WORKLOAD, "cuda")
    (kernel,) = operator.resources()
    assert kernel.registers > 0
    assert kernel.spill_store_bytes == 0
    assert "__global__" in operator.source()
    assert ".visible .entry" in operator.source("ptx")
    with pytest.raises(NoDeviceError, match="NVIDIA GPU"):
        operator(X, W, OPERANDS["scale"], OPERANDS["shift"])


def test_operator_checks_its_arrays() -> None:
    operator = tvmconv.compile(ConvWorkload.depthwise(X.shape, W.shape, scale=True))
    with pytest.raises(InvalidArgumentError, match="operands is 'x, w'; expected the workload's: x, w, scale"):
        operator(X, W)
    with pytest.raises(InvalidArgumentError, match="operands is 'x, w, scale, shift'; expected the workload's: x, w,"):
        operator(X, W, OPERANDS["scale"], OPERANDS["shift"])
    with pytest.raises(InvalidArgumentError, match="expected the shape"):
        operator(X[:1], W, OPERANDS["scale"])


def test_sources() -> None:
    operator = tvmconv.compile(WORKLOAD)
    assert "T.prim_func" in operator.source("tvmscript")
    assert "define" in operator.source()
    assert ".text" in operator.source("asm")
    assert operator.resources() == ()
    with pytest.raises(InvalidArgumentError, match="kind is 'ptx'; expected one of tvmscript, source, asm"):
        operator.source("ptx")


def test_configuration_given_by_the_caller() -> None:
    target = resolve_target("llvm")
    space = template_for(Problem(WORKLOAD), target).space(Problem(WORKLOAD), target)
    config = space.configs[-1]
    operator = tvmconv.compile(WORKLOAD, target, config)
    assert operator.selection.config == config
    check_result(WORKLOAD, OPERANDS, operator(*(OPERANDS[name] for name in ("x", "w", "scale", "shift"))))
    for knob, value in {"rows": 0, "columns": -1, "vector": 4.0, "unroll": "2", "parallel": 1, "tiles": None}.items():
        with pytest.raises(InvalidArgumentError, match="config is .* meets the constraints malformed"):
            tvmconv.compile(WORKLOAD, target, replace(config, **{knob: value}))
    with pytest.raises(InvalidArgumentError, match="config is .* meets the constraints straight_line"):
        tvmconv.compile(WORKLOAD, target, replace(config, unroll=5))
    illegal = type(config)(tiles=1, rows=64, columns=64, vector=16, over_channels=False, unroll=2, parallel=True)
    with pytest.raises(InvalidArgumentError, match="config is .* meets the constraints .*registers"):
        tvmconv.compile(WORKLOAD, target, illegal)
    with pytest.raises(InvalidArgumentError, match="config is 7"):
        tvmconv.compile(WORKLOAD, target, 7)


DENSE = ConvWorkload.conv2d((2, 6, 9, 11), (8, 3, 3, 3), groups=2, shift=True, residual=True, activation="relu")
DENSE_OPERANDS = random_operands(DENSE)


@pytest.mark.parametrize("kind", KINDS)
def test_conv2d(kind: str) -> None:
    make, result_type, to_numpy = KINDS[kind]
    x, w, shift, residual = (make(DENSE_OPERANDS[name]) for name in ("x", "w", "shift", "residual"))
    result = tvmconv.conv2d(x, w, groups=2, shift=shift, residual=residual, activation="relu")
    assert isinstance(result, result_type)
    check_result(DENSE, DENSE_OPERANDS, to_numpy(result))


def test_algorithm_given_by_the_caller() -> None:
    operator = tvmconv.compile(DENSE, algorithm="im2win")
    assert operator.selection.name == "cpu/im2win"
    assert tvmconv.compile(DENSE, config=operator.selection.config).selection.name == "cpu/im2win"
    x, w = (DENSE_OPERANDS[name] for name in ("x", "w"))
    by_name = [tvmconv.conv2d(x, w, groups=2, algorithm=name) for name in ("auto", "direct", "im2win")]
    assert np.array_equal(by_name[0], by_name[1])
    assert np.allclose(by_name[1], by_name[2], atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_conv2d_with_a_group_for_each_channel_is_depthwise(kind: str) -> None:
    make, _, to_numpy = KINDS[kind]
    got = to_numpy(tvmconv.conv2d(make(X), make(W.reshape(12, 1, 3, 3)), groups=6, stride=2))
    assert np.array_equal(got, tvmconv.depthwise(X, W, stride=2))


def test_algorithms_that_do_not_compute_a_convolution() -> None:
    with pytest.raises(
        InvalidArgumentError,
        match="'depthwise'; expected auto or direct or im2win or winograd, for conv2d",
    ):
        tvmconv.conv2d(X, W.reshape(2, 6, 3, 3), algorithm="depthwise")
    with pytest.raises(InvalidArgumentError, match="algorithm is 'direct'; expected auto or depthwise"):
        tvmconv.conv2d(X, W.reshape(12, 1, 3, 3), groups=6, algorithm="direct")
    with pytest.raises(InvalidArgumentError, match=r"residual is \(2, 12, 13, 14\); expected the shape"):
        tvmconv.conv2d(X, np.ones((12, 6, 1, 1), "float32"), residual=np.ones((2, 12, 13, 14), "float32"))
