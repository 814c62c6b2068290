"""Batched products of a network: numbers, those of GPUs by serial twins, machine code, and what is left to TVM."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain, product

import numpy as np
import pytest
import tvm
from tvm import relax

import tvmconv
from tests.network.passes.attention_cases import LLVM, SM_90, Attention, Shapes, factors, first_result
from tests.shared.network_graph import relax_module
from tests.shared.passes import use_products, with_precision
from tests.shared.sparing import every
from tvmconv.network import Layer, TensorSpec
from tvmconv.network.model import Model
from tvmconv.problem.dtypes import STORAGE_TYPES
from tvmconv.targets import cuda, resolve_target

torch = pytest.importorskip("torch")

BOUNDS = (
    ("float32", "float32", 1e-6),
    ("float32", "tf32", 2e-3),
    ("float16", "float32", 2e-3),
    ("float32", "float16", 2e-3),
    ("float32", "bfloat16", 1.6e-2),
)
"""The type of a model, the precision that it is built with, and the largest error as a share of the largest output."""

SIZES = ((16, 32), (13, 20), (49, 6))


@pytest.mark.parametrize(("size", "of"), every(3, product(SIZES, BOUNDS)), ids=str)
def test_numbers_of_attention(size: tuple[int, int], of: tuple[str, str, float]) -> None:
    """Sizes that fill copies, and others, whose factors get zeros behind them."""
    (length, depth), (dtype, precision, bound) = size, of
    inputs = factors(length, depth, dtype)
    with torch.no_grad():
        expected = Attention()(*(each.double() for each in inputs)).numpy()
    model = tvmconv.import_model(Attention().to(getattr(torch, dtype)), tuple(inputs))
    narrow, word = with_precision(model.mod, SM_90, precision)
    mod, layers = use_products(narrow, SM_90, word)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/tensor"] * 2
    assert [layer.convolution.flops >= 2 * 6 * length**2 * depth for layer in layers] == [True, True]
    y = first_result(mod, *inputs).astype("float64")
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=bound * np.abs(expected).max())


def test_scores_may_be_larger_than_halves() -> None:
    """Scores of 90000, which float16 does not have, are in float32 until they are scaled and softmax has read them."""
    q, v = 300 * torch.eye(16).expand(2, 3, 16, 16).clone(), factors(16, 16)[2]
    model = tvmconv.import_model(Attention(), (q, q, v))
    narrow, word = with_precision(model.mod, SM_90, "float16")
    mod, layers = use_products(narrow, SM_90, word)
    assert [layer.convolution.workload.operands["output"][1] for layer in layers] == ["float32", "float32"]
    y = first_result(mod, q, q, v)
    np.testing.assert_allclose(y, v.numpy(), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_machine_code(arch: str) -> None:
    """Products of long rows multiply on tensor cores, without spills, and what transposes keys takes no kernel."""
    inputs = tuple(factors(64, 160, "float16"))
    network = tvmconv.build(tvmconv.import_model(Attention().half(), inputs), {"kind": "cuda", "arch": arch})
    assert [str(layer.kernel) for layer in network.layers] == ["tvmconv cuda/tensor"] * 2
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, arch)]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    assert sum("product" in each.name for each in kernels) == 2
    ours = [source for source in sources if "product" in source]
    words = {"wgmma.mma_async" if layer.config["wgmma"] else "mma.sync" for layer in network.layers}
    assert all(any(word in source for word in words) for source in ours)


FACTORS: tuple[Shapes, ...] = (
    ((2, 3, 7, 5), (2, 3, 5, 3)),
    ((2, 13, 20), (2, 20, 37)),
    ((4, 6, 9), (4, 9, 1)),
    ((4, 6, 1), (4, 1, 19)),
    ((2, 1, 9), (2, 9, 33)),
    ((1, 1), (1, 1)),
    ((7, 5), (5, 3)),
    ((3, 4, 5), (5, 6)),
    ((3, 4, 5), (1, 1, 5, 6)),
    ((4, 5), (3, 5, 18)),
    ((1, 1, 4, 5), (3, 5, 6)),
)
"""The shapes of factors, which kernels on a CPU multiply: odd ones, single rows, terms and columns, and shared ones."""


def products(*shapes: Shapes, dtype: str = "float32") -> Model:
    """Return a model of a product for each two shapes, whose factors are its inputs."""
    specs = tuple(TensorSpec(f"x{i}", shape, dtype) for i, shape in enumerate(chain(*shapes)))
    inputs = [relax.Var(each.name, relax.TensorType(each.shape, dtype)) for each in specs]
    mod = relax_module(lambda *xs: [relax.op.matmul(*pair) for pair in zip(xs[::2], xs[1::2], strict=True)], *inputs)
    found = mod["main"].ret_ty.fields
    outputs = tuple(TensorSpec(f"y{i}", tuple(map(int, each.shape)), dtype) for i, each in enumerate(found))
    return Model(mod, specs, outputs)


@pytest.mark.parametrize(("dtype", "rounding"), [("float32", 2**-22), ("float16", 2**-11), ("bfloat16", 2**-8)])
def test_numbers_on_a_cpu(dtype: str, rounding: float) -> None:
    """Each product has the rounding of its store, and of some sums, beside float64."""
    rng = np.random.default_rng(5)
    arrays = [rng.standard_normal(shape).astype(STORAGE_TYPES[dtype].numpy) for pair in FACTORS for shape in pair]
    network = tvmconv.build(products(*FACTORS, dtype=dtype))
    assert all(layer.kernel.startswith("tvmconv cpu/") for layer in network.layers)
    assert len(network.layers) == len(FACTORS)
    wide = [each.astype("float64") for each in arrays]
    for x, w, y in zip(wide[::2], wide[1::2], network(*arrays), strict=True):
        assert y.shape == (x @ w).shape
        assert (np.abs(y.astype("float64") - x @ w) <= 1.01 * rounding * (np.abs(x) @ np.abs(w))).all()


def test_attention_on_a_cpu() -> None:
    """Both products have kernels, and a layer says what runs each."""
    inputs = factors(49, 18)
    network = tvmconv.build(tvmconv.import_model(Attention(), tuple(inputs)))
    first, second = (layer.convolution for layer in network.layers)
    assert all(layer.kernel.startswith("tvmconv cpu/") for layer in network.layers)
    assert first.description == "product of 6 49x18 times 18x49 float32 to float32"
    assert first.flops == second.flops == 2 * 6 * 49 * 49 * 18
    expected = Attention()(*(each.double() for each in inputs)).numpy()
    y = network(*(each.numpy() for each in inputs))
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def layers_of(*shapes: Shapes, target: tvm.target.Target, dtype: str = "float32") -> Sequence[Layer]:
    return use_products(products(*shapes, dtype=dtype).mod, target)[1]


def test_what_is_left_to_tvm() -> None:
    """On a GPU single rows have nothing to share; what no workload describes is TVM's everywhere, and says why."""
    taken = layers_of(((2, 4, 8), (2, 8, 4)), ((7, 8), (8, 5)), ((3, 4, 8), (8, 5)), target=SM_90)
    assert [layer.kernel for layer in taken] == ["tvmconv cuda/tensor"] * 3
    left = layers_of(((2, 1, 8), (2, 8, 4)), ((2, 4, 1), (2, 1, 4)), ((4, 8), (3, 8, 5)), target=SM_90)
    assert [layer.kernel for layer in left] == ["TVM"] * 3
    old = resolve_target({"kind": "cuda", "arch": "sm_75"})
    assert [layer.kernel for layer in layers_of(((2, 4, 8), (2, 8, 4)), target=old)] == ["TVM"]
    shapes: Shapes = (2, 1, 4, 5), (2, 3, 5, 6)
    (several,) = layers_of(shapes, target=LLVM)
    assert (several.kernel, several.reason) == ("TVM", "a matrix is a factor of several, and not of all")
    assert several.convolution.flops == 2 * 6 * 4 * 6 * 5
    reasons = [layer.reason for layer in layers_of(((5,), (5, 3)), ((2, 0), (0, 3)), target=LLVM)]
    assert reasons == ["a factor is a vector", "a factor has no elements"]
    (integers,) = layers_of(((4, 5), (5, 3)), target=LLVM, dtype="int32")
    assert integers.reason == "int32 with int32 is not supported"
    large: Shapes = (2**15, 4), (4, 2**16)
    (too_large,) = layers_of(large, target=LLVM)
    assert too_large.kernel == "TVM"
    assert "elements" in too_large.reason


def test_open_sizes_have_kernels() -> None:
    """A batch of any size takes the kernel for all sizes, without a warning."""
    inputs, batch = tuple(factors(8, 8)), torch.export.Dim("n", min=2, max=8)
    program = torch.export.export(Attention(), inputs, dynamic_shapes=[{0: batch}] * 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        network = tvmconv.build(tvmconv.import_model(program))
    assert [layer.kernel for layer in network.layers] == ["tvmconv cpu/product"] * 2
    expected = Attention()(*(each.double() for each in inputs)).numpy()
    np.testing.assert_allclose(network(*(each.numpy() for each in inputs)), expected, rtol=0, atol=1e-5)
