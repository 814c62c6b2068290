"""`tvmconv.sparse_conv2d`: every kind of weight and of array, reports, files, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import tvm

import tvmconv
from tvmconv import ConvWorkload
from tvmconv.lowering import build_kernel
from tvmconv.problem.dtypes import NARROW, STORAGE_TYPES
from tvmconv.problem.errors import InvalidArgumentError, NoDeviceError
from tvmconv.runtime.sparse import operator
from tvmconv.targets import has_gpu
from tvmconv.testing import check_result, random_operands

torch = pytest.importorskip("torch")

RNG = np.random.default_rng(3)
WORKLOAD = ConvWorkload.conv2d((1, 4, 6, 8), (6, 4, 3, 3), stride=2, shift=True, residual=True, activation="relu")
OPERANDS = random_operands(WORKLOAD)
OPERANDS["w"] *= RNG.random(WORKLOAD.w_shape) < 0.3
X, W, SHIFT, RESIDUAL = (OPERANDS[name] for name in ("x", "w", "shift", "residual"))


def plain(x: np.ndarray, w: np.ndarray, **options: Any) -> np.ndarray:
    """Compute the same by the dense kernels."""
    return np.asarray(tvmconv.conv2d(x, w.astype("float32"), **options))


def test_threads_compile_for_different_shapes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    conv, both = tvmconv.sparse_conv2d(W), Barrier(2)

    def compiled(self: object, x_shape: tuple[int, ...], *rest: object) -> tuple[int, ...]:
        both.wait(30)  # breaks where one waits for the other
        return x_shape

    monkeypatch.setattr(tvmconv.SparseConv2d, "_compile", compiled)
    shapes = [(1, 4, 6, 8), (1, 4, 8, 8)]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(conv.operator, shapes)) == shapes


@pytest.mark.parametrize("make", [lambda a: a, torch.from_numpy, tvm.runtime.tensor], ids=["numpy", "torch", "tvm"])
def test_arrays_in_and_out(make: Callable[[np.ndarray], Any]) -> None:
    conv = tvmconv.sparse_conv2d(W, stride=2, shift=SHIFT, residual=True, activation="relu")
    result = conv(make(X), make(RESIDUAL))
    assert type(result) is type(make(X))
    check_result(WORKLOAD, OPERANDS, np.from_dlpack(result))


def test_each_shape_is_compiled_once() -> None:
    conv = tvmconv.sparse_conv2d(W, x_shape=X.shape)
    (first,) = conv.operators
    assert conv.report is first.report
    assert conv.operator(X.shape) is first
    for x in (X, X[:, :, :5], *map(X.astype, NARROW), X):
        unit = STORAGE_TYPES[str(x.dtype)].unit
        assert np.allclose(conv(x).astype("float32"), plain(x.astype("float32"), W), rtol=unit, atol=1e-5)
    assert [operator.workload.x_shape for operator in conv.operators] == [X.shape, (1, 4, 5, 8), X.shape, X.shape]
    with pytest.raises(InvalidArgumentError, match=r"x_shape is \[.*; expected one compiled shape"):
        conv.source()


def test_batches_after_the_first_share_a_kernel(tmp_path: Path) -> None:
    conv = tvmconv.sparse_conv2d(W)
    x = RNG.standard_normal((7, *X.shape[1:])).astype("float32")
    for batch in (2, 3, 7, 1, 2):
        assert np.allclose(conv(x[:batch]), plain(x[:batch], W), rtol=0, atol=1e-5)
    own, shared = conv.operators
    assert (own.workload.batch, own.problem.open_sizes) == (2, ())
    assert (shared.workload.batch, shared.problem.open_sizes) == (3, ("batch",))
    shared.save(tmp_path / "any.so")
    assert np.array_equal(tvmconv.load(tmp_path / "any.so")(x), conv(x))
    assert conv.operator((3, *X.shape[1:])).problem.open_sizes == ()
    conv(x[:3])
    assert len(conv.operators) == 3


def test_many_callers_compile_once() -> None:
    conv = tvmconv.sparse_conv2d(W)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: conv(X), range(16)))
    assert len(conv.operators) == 1
    assert np.allclose(results[0], plain(X, W), atol=1e-5)
    assert all(np.array_equal(result, results[0]) for result in results)


def matrix() -> np.ndarray:
    return W.reshape(6, -1)


def scipy_matrix() -> Any:
    sparse = pytest.importorskip("scipy.sparse")
    return sparse.csr_matrix(matrix())


WEIGHTS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "double": (lambda: W.astype("float64"), {}),
    "torch": (lambda: torch.from_numpy(W).requires_grad_(), {}),
    "dlpack": (lambda: tvm.runtime.tensor(W), {}),
    "matrix": (matrix, {"kernel": (3, 3)}),
    "matrix-of-square-kernels": (matrix, {"kernel": 3}),
    "kernel-beside": (lambda: W, {"kernel": [3, 3]}),
    "scipy": (scipy_matrix, {"kernel": (3, 3)}),
    "torch-csr": (lambda: torch.from_numpy(matrix()).to_sparse_csr(), {"kernel": (3, 3)}),
}


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights(kind: str) -> None:
    make, options = WEIGHTS[kind]
    conv = tvmconv.sparse_conv2d(make(), **options)
    assert np.array_equal(conv.weight, W)
    assert conv.weight.dtype == np.float32


def test_pruned_module() -> None:
    from torch.nn.utils import prune

    module = torch.nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2)
    prune.l1_unstructured(module, "weight", amount=0.75)
    with torch.no_grad():
        module.weight_orig.mul_(2)  # as training would: module.weight is computed in the next call
    conv = tvmconv.sparse_conv2d(module, activation="relu")
    assert conv.sparsity == 0.75
    x = torch.from_numpy(X)
    assert torch.allclose(conv(x), module(x).relu().detach(), atol=1e-5)
    assert conv.operators[0].workload.groups == 2
    assert tvmconv.sparse_conv2d(module, stride=1).operator(X.shape).workload.stride == (1, 1)


def test_scale_is_in_the_weight() -> None:
    scale = np.array([1, 2, 0, -1, 0.5, 3], "float32")
    conv = tvmconv.sparse_conv2d(W, scale=scale, shift=SHIFT)
    assert conv.nonzeros == np.count_nonzero(np.delete(W, 2, axis=0))
    assert np.allclose(conv(X), plain(X, W, scale=scale, shift=SHIFT), atol=1e-5)


def test_depthwise() -> None:
    w = RNG.standard_normal((4, 1, 3, 3)) * (RNG.random((4, 1, 3, 3)) < 0.5)
    assert np.allclose(tvmconv.sparse_conv2d(w, groups=4)(X), plain(X, w, groups=4), atol=1e-5)


def test_zeros_are_not_computed() -> None:
    """The values of x at a zero of the weight, negative or not, have no effect."""
    x, w = X.copy(), W.copy()
    w[:, 1], w[:, 2] = 0.0, -0.0
    x[:, 1], x[:, 2] = np.nan, np.inf
    result = tvmconv.sparse_conv2d(w)(x)
    x[:, 1:3] = 0
    assert np.allclose(result, plain(x, w), atol=1e-5)


def test_report_and_sources() -> None:
    conv = tvmconv.sparse_conv2d(W, x_shape=X.shape)
    report = conv.report
    assert (report.weights, report.nonzeros) == (W.size, np.count_nonzero(W))
    assert report.removed == report.multiply_adds - report.left > 0
    assert "T.prim_func" in conv.source("tvmscript")
    assert "define" in conv.source()
    assert ".text" in conv.source("asm")


def test_save_and_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conv = tvmconv.sparse_conv2d(W, 2, shift=SHIFT, residual=True, activation="relu", x_shape=X.shape)
    conv.save(tmp_path / "sparse.so")
    loaded = tvmconv.load(tmp_path / "sparse.so")
    assert isinstance(loaded, tvmconv.SparseOperator)
    assert loaded.report == conv.report
    assert repr(loaded).startswith("<tvmconv.SparseOperator conv2d 1x4x6x8 ")
    assert loaded.selection == conv.operators[0].selection
    check_result(WORKLOAD, OPERANDS, loaded(X, RESIDUAL))
    built: list[Any] = []
    monkeypatch.setattr(operator, "build_kernel", lambda *what: built.append(what) or build_kernel(*what))
    loaded.save(tmp_path / "again.so")
    assert len(built) == 1
    assert np.array_equal(tvmconv.load(tmp_path / "again.so")(X, RESIDUAL), loaded(X, RESIDUAL))


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
def test_cuda_without_a_gpu() -> None:
    conv = tvmconv.sparse_conv2d(W, target={"kind": "cuda", "arch": "sm_90"}, x_shape=X.shape)
    assert conv.report.code_bytes > 16 * conv.report.left
    assert "__global__" in conv.source()
    assert ".visible .entry" in conv.source("ptx")
    assert [kernel.spill_load_bytes for kernel in conv.operators[0].resources()] == [0]
    with pytest.raises(NoDeviceError, match="NVIDIA GPU"):
        conv(X)


def nan() -> np.ndarray:
    w = W.copy()
    w[0, 0, 0, 0] = np.nan
    return w


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "nan": (lambda: tvmconv.sparse_conv2d(nan()), "weight is 'NaN or infinite in places'; expected finite"),
    "overflow": (lambda: tvmconv.sparse_conv2d(np.full(W.shape, 1e39)), "weight is 'NaN or infinite"),
    "scaled-overflow": (lambda: tvmconv.sparse_conv2d(W + 1e30, scale=np.full(6, 1e30)), "weight is 'NaN or infinite"),
    "infinite-shift": (lambda: tvmconv.sparse_conv2d(W, shift=np.full(6, np.inf)), "shift is 'NaN or infinite"),
    "scale": (lambda: tvmconv.sparse_conv2d(W, scale=np.ones(4)), r"scale is \(4,\); expected the shape \(6,\)"),
    "rank": (
        lambda: tvmconv.sparse_conv2d(W[0]),
        r"weight is 'of shape \(4, 3, 3\) with kernel None'",
    ),
    "matrix": (lambda: tvmconv.sparse_conv2d(matrix()), "weight is .* with kernel=\\(R, S\\)"),
    "kernel": (lambda: tvmconv.sparse_conv2d(matrix(), kernel=(5, 5)), r"kernel is \(5, 5\); expected .* divides 36"),
    "kernel-text": (lambda: tvmconv.sparse_conv2d(matrix(), kernel="3"), "kernel is '3'; expected an integer or"),
    "kernel-of-zero": (lambda: tvmconv.sparse_conv2d(matrix(), kernel=0), r"kernel is \(0, 0\); expected .* divides"),
    "kernel-of-four": (lambda: tvmconv.sparse_conv2d(W, kernel=(1, 1)), r"weight is .* with kernel \(1, 1\)'"),
    "module": (lambda: tvmconv.sparse_conv2d(torch.nn.Linear(4, 4)), "weight is .* of torch's modules a Conv2d"),
    "text": (lambda: tvmconv.sparse_conv2d("weight"), "weight is 'str of <U6'; expected real numbers"),
    "channels": (lambda: tvmconv.sparse_conv2d(W)(X[:, :3]), r"w is \(6, 4, 3, 3\)"),
    "integers": (
        lambda: tvmconv.sparse_conv2d(W)(X.astype("int32")),
        "x is 'int32'; expected an array of float32, float16",
    ),
    "residual-missing": (
        lambda: tvmconv.sparse_conv2d(W, residual=True)(X),
        "operands is 'x'; .*: x, residual",
    ),
    "residual-too-many": (lambda: tvmconv.sparse_conv2d(W)(X, X), "operands is 'x, residual'; expected .*: x"),
    "activation": (lambda: tvmconv.sparse_conv2d(W, activation="mish", x_shape=X.shape), "activation is 'mish'"),
}


@pytest.mark.parametrize("bad", BAD)
def test_bad_arguments(bad: str) -> None:
    call, message = BAD[bad]
    with pytest.raises(InvalidArgumentError, match=message):
        call()
