"""Products of matrices with open sizes: numbers beside float64, on a CPU and of the GPU's kernel as it is emulated."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
import onnx
import pytest
import tvm

import tvmconv
from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.shared.network_graph import Graph
from tvmconv.lowering import build
from tvmconv.network.passes.products.gpu_kernel import gpu_product_kernel
from tvmconv.network.passes.products.kernel import product_kernel
from tvmconv.network.passes.products.product import Product
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import resolve_target

LLVM, SM_90 = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})

SIZES = ((2, 19, 5, 37), (3, 1, 33, 16), (1, 241, 7, 33), (2, 12, 1, 1), (1, 6, 64, 64), (2, 3, 16, 70))
"""Matrices, rows, terms and columns: whole and ragged tiles of each."""


@dataclass(frozen=True)
class Case:
    """A product whose second factor may be transposed."""

    dtype: str = "float32"
    transposed: bool = False
    shares_first: bool = False

    def product(self, *sizes: int | tvm.tirx.Var) -> Product:
        batch, rows, terms, columns = sizes
        return Product(batch, rows, terms, columns, self.dtype, self.dtype, self.shares_first)

    def operands(self, batch: int, rows: int, terms: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(rows)
        first = (1 if self.shares_first else batch, rows, terms)
        second = (batch, columns, terms) if self.transposed else (batch, terms, columns)
        dtype = STORAGE_TYPES[self.dtype].numpy
        return rng.standard_normal(first).astype(dtype), rng.standard_normal(second).astype(dtype)

    def check(self, x: np.ndarray, w: np.ndarray, y: np.ndarray) -> None:
        """Require the rounding of a store, and that of sums in float32, beside float64."""
        x, w, y = (each.astype("float64") for each in (x, w, y))
        w = np.swapaxes(w, 1, 2) if self.transposed else w
        bound = 1.01 * STORAGE_TYPES[self.dtype].unit + 2.0**-24 * (x.shape[2] + 2)
        assert (np.abs(y - x @ w) <= bound * (np.abs(x) @ np.abs(w)) + 1e-30).all()


CASES = {
    "float32": Case(),
    "transposed": Case(transposed=True),
    "one-first": Case(shares_first=True),
    "float16": Case("float16", transposed=True),
}


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_for_all_sizes_of_a_cpu(name: str) -> None:
    case = CASES[name]
    sizes = [tvm.tirx.Var(each, "int64") for each in ("batch", "rows", "terms", "columns")]
    func = product_kernel(case.product(*sizes), case.transposed, LLVM, "product")
    kernel = build(tvm.IRModule({"product": func}), LLVM)["product"]
    for batch, rows, terms, columns in SIZES:
        x, w = case.operands(batch, rows, terms, columns)
        y = np.full((batch, rows, columns), np.nan, x.dtype)
        arguments = [tvm.runtime.tensor(each) for each in (x, w, y)]
        kernel(*arguments)
        case.check(x, w, arguments[-1].numpy())


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_of_a_gpu(name: str) -> None:
    """No access to shared memory is without a barrier between it and another one."""
    case = CASES[name]
    for batch, rows, terms, columns in ((2, 70, 37, 65), (1, 3, 17, 130)):
        func = gpu_product_kernel(case.product(batch, rows, terms, columns), case.transposed, SM_90, "product")
        (kernel,) = device_functions(func, SM_90)
        x, w = case.operands(batch, rows, terms, columns)
        y = np.full(batch * rows * columns, np.nan, x.dtype)
        Emulator(kernel, {"x": x.reshape(-1), "w": w.reshape(-1), "output": y})
        case.check(x, w, y.reshape(batch, rows, columns))


def encoder(batch: int | str, length: int | str, step: int = 1) -> onnx.ModelProto:
    """Return attention of four heads and a linear layer behind it, of every so many positions of a sequence."""
    graph = Graph((batch, length, 32))
    y = graph.node("Slice", "x", *(graph.constant([each], "int64") for each in (0, 2**31, 1, step)))
    parts = []
    for axes in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        projected = graph.node("MatMul", y, graph.random(32, 32, scale=1 / 6))
        heads = graph.node("Reshape", projected, graph.constant([0, 0, 4, 8], "int64"))
        parts.append(graph.node("Transpose", heads, perm=axes))
    shares = graph.node("Softmax", graph.node("MatMul", *parts[:2]), axis=-1)
    values = graph.node("Transpose", graph.node("MatMul", shares, parts[2]), perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", values, graph.constant([0, 0, 32], "int64"))
    return graph.model(graph.node("MatMul", joined, graph.random(32, 16, scale=1 / 6)))


OPEN = {"batch": ("n", 9, 1), "length": (1, "s", 1), "both": ("n", "s", 1), "expression": ("n", "s", 2)}
"""The batch, the length, and the step between the positions that are taken, of networks with open sizes."""


@pytest.mark.parametrize("name", OPEN)
def test_attention_of_open_sizes(name: str) -> None:
    """All products have kernels, without a warning, and the numbers are those of ONNX Runtime."""
    onnxruntime = pytest.importorskip("onnxruntime")
    batch, length, step = OPEN[name]
    model = encoder(batch, length, step)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = tvmconv.build(model)
    assert all(layer.kernel.startswith("tvmconv cpu/") for layer in network.layers)
    assert sum(layer.kernel == "tvmconv cpu/product" for layer in network.layers) == 2
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n, s in ((1, 9), (3, 9), (2, 40)):
        shape = n if batch == "n" else 1, s if length == "s" else 9, 32
        x = np.random.default_rng(s).standard_normal(shape).astype("float32")
        np.testing.assert_allclose(network(x), session.run(None, {"x": x})[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("arch", ["sm_75", "sm_90"])
def test_it_builds_for_a_gpu(arch: str) -> None:
    """Sizes are expressions, (s + 1) // 2, of which TVM's rules make shared memory of open size."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = tvmconv.build(encoder("n", "s", 2), {"kind": "cuda", "arch": arch})
    assert sum(layer.kernel == "tvmconv cuda/product" for layer in network.layers) == 2


def test_factors_that_agree_only_in_calls() -> None:
    graph = Graph(("n", 4, "s"))
    graph.inputs.append(onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, ["n", "t", 5]))
    with pytest.warns(UserWarning, match="s and t terms are the same only when the model runs"):
        tvmconv.build(graph.model(graph.node("MatMul", "x", "w")))
