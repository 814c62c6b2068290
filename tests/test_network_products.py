"""Batched products of a network: numbers, those of GPUs by serial twins, machine code, and what is left to TVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, product
from typing import Any

import numpy as np
import pytest
import tvm
from between_cases import Function
from network_graph import operators
from open_batches import with_twins
from sparing import every
from tvm import relax

import tvmconv
from tvmconv import cuda, lowering
from tvmconv.dtypes import STORAGE_TYPES
from tvmconv.network import Layer, TensorSpec
from tvmconv.network.half import with_precision
from tvmconv.network.kernels import NetworkKernel, add_kernel, use_kernels
from tvmconv.network.matrices import with_rows_in_matrices
from tvmconv.network.model import Model
from tvmconv.network.parts import permute_parts, slice_parts
from tvmconv.network.products import use_products
from tvmconv.network.safe_softmax import with_safe_softmax
from tvmconv.network.scales import scale_results
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("composite_operators")

SM_90, LLVM = resolve_target({"kind": "cuda", "arch": "sm_90"}), resolve_target("llvm")


class Attention(torch.nn.Module):
    """Scores of queries and keys, their softmax, and the sums of values that these weigh."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def factors(length: int, depth: int, dtype: str = "float32") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(length)
    return [torch.randn(2, 3, length, depth, generator=generator).to(getattr(torch, dtype)) for _ in range(3)]


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
    executable = lowering.build(with_twins(mod, {}), LLVM)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    y = (result if isinstance(result, tvm.runtime.Tensor) else result[0]).numpy().astype("float64")
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=0, atol=bound * np.abs(expected).max())


def test_scores_may_be_larger_than_halves() -> None:
    """Scores of 90000, which float16 does not have, are in float32 until they are scaled and softmax has read them."""
    q, v = 300 * torch.eye(16).expand(2, 3, 16, 16).clone(), factors(16, 16)[2]
    model = tvmconv.import_model(Attention(), (q, q, v))
    narrow, word = with_precision(model.mod, SM_90, "float16")
    mod, layers = use_products(narrow, SM_90, word)
    assert [layer.convolution.workload.operands["output"][1] for layer in layers] == ["float32", "float32"]
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    y = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in (q, q, v))).numpy()
    np.testing.assert_allclose(y, v.numpy(), rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_machine_code(arch: str) -> None:
    """Both products multiply on tensor cores, without spills, and what transposes keys takes no kernel."""
    inputs = tuple(factors(64, 32, "float16"))
    network = tvmconv.build(tvmconv.import_model(Attention().half(), inputs), {"kind": "cuda", "arch": arch})
    assert [str(layer.kernel) for layer in network.layers] == ["tvmconv cuda/tensor"] * 2
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, arch)]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    assert sum("product" in each.name for each in kernels) == 2
    ours = [source for source in sources if "product" in source]
    words = {"wgmma.mma_async" if layer.config["wgmma"] else "mma.sync" for layer in network.layers}
    assert all(any(word in source for word in words) for source in ours)


Shapes = tuple[tuple[int, ...], tuple[int, ...]]

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
    builder = relax.BlockBuilder()
    specs = tuple(TensorSpec(f"x{i}", shape, dtype) for i, shape in enumerate(chain(*shapes)))
    inputs = [relax.Var(each.name, relax.TensorType(each.shape, dtype)) for each in specs]
    with builder.function("main", inputs):
        with builder.dataflow():
            found = [builder.emit(relax.op.matmul(*pair)) for pair in zip(inputs[::2], inputs[1::2], strict=True)]
            output = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(output)
    outputs = tuple(TensorSpec(f"y{i}", tuple(map(int, each.ty.shape)), dtype) for i, each in enumerate(found))
    return Model(builder.get(), specs, outputs)


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


def test_open_batches_are_warned_of() -> None:
    """TVM's own loops are slow: the warning says how to get a kernel, and so does the layer."""
    inputs, batch = tuple(factors(8, 8)), torch.export.Dim("n", min=2, max=8)
    program = torch.export.export(Attention(), inputs, dynamic_shapes=[{0: batch}] * 3)
    with pytest.warns(UserWarning, match=r"^2 of 2 matrix products on TVM's own loops, .*; give it as `shapes`"):
        network = tvmconv.build(tvmconv.import_model(program))
    assert [layer.kernel for layer in network.layers] == ["TVM"] * 2
    expected = Attention()(*(each.double() for each in inputs)).numpy()
    np.testing.assert_allclose(network(*(each.numpy() for each in inputs)), expected, rtol=0, atol=1e-5)


class Block(torch.nn.Module):
    """Attention between the layers that a transformer has around it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.projection = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, length, width = x.shape
        parts = self.qkv(x).reshape(n, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        y = Attention()(*parts.unbind(0))
        return self.projection(y.transpose(1, 2).reshape(n, length, width))


@pytest.mark.parametrize(("n", "length"), every(2, [(2, 21), (1, 16), (3, 50)]))
@pytest.mark.parametrize("precision", every(2, ["float16", "bfloat16", "float32"]))
def test_products_read_and_store_in_place(n: int, length: int, precision: str) -> None:
    """Queries and keys are read where their layer stored them, and the result is stored as the next one reads it."""
    torch.manual_seed(length)
    module, x = Block(64, 2).eval(), torch.randn(n, length, 64)
    with torch.no_grad():
        expected = module.double()(x.double()).numpy()
        module.float()
    imported = with_rows_in_matrices(tvmconv.import_model(module, (x,)).mod, SM_90)
    narrow, word = with_precision(imported, SM_90, precision)
    mod, layers = use_kernels(narrow, SM_90, "auto", word)
    mod, products = use_products(mod, SM_90, word)
    assert [layer.kernel for layer in (*layers, *products)] == ["tvmconv cuda/tensor"] * 4
    names = operators(mod)
    moves = [names.count(f"relax.{name}") for name in ("permute_dims", "strided_slice", "nn.pad")]
    assert moves == [2, 1, int(length % 8 > 0)]  # those of values, whose terms have to be side by side
    executable = lowering.build(with_twins(mod, {}), LLVM)
    machine = tvm.relax.VirtualMachine(executable, tvm.cpu())
    y = machine["main"](tvm.runtime.tensor(x.numpy())).numpy()
    bound = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 1e-5}[precision]
    np.testing.assert_allclose(y, expected, rtol=0, atol=bound * np.abs(expected).max())


MOVED: dict[str, tuple[Callable[..., torch.Tensor], Shapes, list[str]]] = {
    "both": (lambda x, y: x.transpose(1, 2) @ y.permute(0, 2, 3, 1), ((2, 9, 3, 16), (2, 8, 3, 16)), ["x", "w"]),
    "parts": (lambda x, y: x[:, :, 16:32] @ y[:, 2:10, :16].transpose(1, 2), ((3, 9, 32), (3, 12, 24)), ["x", "w"]),
    "expanded": (lambda x, y: x.transpose(0, 1) @ y, ((5, 2, 24), (24, 16)), ["x"]),
    "first-not-in-rows": (lambda x, y: x.transpose(1, 2) @ y, ((2, 16, 9), (2, 16, 8)), []),
    "odd-step": (lambda x, y: x[:, :, 1:17] @ y.transpose(1, 2), ((2, 9, 20), (2, 8, 16)), []),
    "result": (lambda x, y: (x @ y).permute(2, 0, 1, 3).reshape(9, 48) + 1, ((2, 3, 9, 16), (2, 3, 16, 8)), ["output"]),
    "result-across": (lambda x, y: (x @ y).transpose(2, 3) + 1, ((2, 3, 9, 16), (2, 3, 16, 8)), []),
    "of-a-result": (
        lambda x, y: (lambda z: z[..., :16] @ z[..., 16:].transpose(2, 3))((x @ y).transpose(1, 2)),
        ((2, 3, 9, 16), (2, 3, 16, 32)),
        ["output", "x", "w"],
    ),
    "padded-columns": (lambda x, y: (x @ y).transpose(1, 2) + 1, ((2, 3, 9, 16), (2, 3, 16, 7)), []),
}
"""Products of which factors or results lie in other tensors, the shapes of these, and the names of the operands that
are read or stored there."""


@pytest.mark.parametrize("name", MOVED)
def test_operands_in_other_tensors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shapes, names = MOVED[name]
    found: list[str] = []

    def noted(*args: Any, **options: Any) -> NetworkKernel:
        found.extend(args[-1])
        return add_kernel(*args, **options)

    monkeypatch.setattr("tvmconv.network.products.add_kernel", noted)
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(shape, generator=generator).half() for shape in shapes)
    mod, _ = use_products(tvmconv.import_model(Function(function), inputs).mod, SM_90)
    assert found == names
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    y = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs)).numpy()
    expected = function(*(each.double() for each in inputs)).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


class Biased(torch.nn.Module):
    """Attention with a bias for each pair of places, as windows have."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = torch.nn.Parameter(3 * torch.randn(shape))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return torch.softmax(q @ k.transpose(-1, -2) / 5 + self.bias, -1) @ v


@pytest.mark.parametrize("shape", [(3, 13, 13), (13,), (3, 13, 1)], ids=str)
def test_scores_stay_in_padded_rows(shape: tuple[int, ...]) -> None:
    """Softmax has zeros behind the scores, whatever constants are joined to them."""
    torch.manual_seed(4)
    inputs, module = factors(13, 16, "float16"), Biased(*shape).half()
    mod, _ = use_products(tvmconv.import_model(module, tuple(inputs)).mod, SM_90)
    names = operators(mod)
    assert names.count("relax.nn.pad") == 2  # those of keys and values
    assert "relax.strided_slice" not in names
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    y = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs)).numpy()
    expected = module.double()(*(each.double() for each in inputs)).detach().numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


UNPADDED: dict[str, Callable[..., Any]] = {
    "scores-are-read": lambda scores, v: (torch.softmax(scores, -1) @ v, scores + 1),
    "both-factors": lambda scores, v: (lambda x: x @ x)(torch.softmax(scores.flatten(0, 1), -1)),
    "no-zeros-behind": lambda scores, v: (0.01 / torch.softmax(scores / 9, -1)) @ v,
}
"""Results of scores and values that rows with something behind the scores would make wrong, by what is in the way."""


@pytest.mark.parametrize("name", UNPADDED)
def test_scores_get_no_padding(name: str) -> None:
    inputs = factors(13, 16, "float16")

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return UNPADDED[name](q @ k.transpose(-1, -2), v)

    mod, _ = use_products(tvmconv.import_model(Function(function), tuple(inputs)).mod, SM_90)
    assert {"relax.strided_slice", "relax.nn.pad"} <= set(operators(mod))
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    y = (found if isinstance(found, tvm.runtime.Tensor) else found[0]).numpy()
    expected = function(*(each.double() for each in inputs))
    expected = (expected[0] if isinstance(expected, tuple) else expected).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


def test_parts_are_slices() -> None:
    """A place on an axis is no table's, and each part that is read is permuted by itself."""

    def parts(x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(2, 5, 3, 4).permute(2, 0, 1, 3)
        return y[0] * y[2]

    mod = tvmconv.import_model(Function(parts), (torch.zeros(2, 5, 12),)).mod
    assert operators(mod).count("relax.take") == 2
    names = operators(permute_parts(slice_parts(mod)))
    assert "relax.take" not in names
    assert [names.count(f"relax.{each}") for each in ("permute_dims", "strided_slice")] == [2, 2]


class Scaled(torch.nn.Module):
    """Attention by torch's own function, between layers, with a first row of scores that are all masked."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(4))
        self.register_buffer("mask", torch.full((21, 21), -torch.inf).triu(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (layer(x).view(2, 21, 2, 16).transpose(1, 2) for layer in self.layers[:3])
        y = torch.nn.functional.scaled_dot_product_attention(q * 1.5, k, v, attn_mask=self.mask)
        return torch.relu(self.layers[3](y.transpose(1, 2).reshape(2, 21, 32)))


def test_scales_come_behind_products() -> None:
    """A number of several axes too, both of two factors, but none of a factor that something else reads."""

    def scaled(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first = (x * torch.full((1, 1, 1), 0.5)).flatten(0, 1) @ (y.transpose(0, 1) / 3).transpose(0, 1)
        read = z * 0.25
        return first.reshape(2, 3, 4) + 1, read @ y, read + 1

    inputs = torch.randn(2, 3, 5), torch.randn(5, 4), torch.randn(6, 5)
    mod = scale_results(tvmconv.import_model(Function(scaled), inputs).mod)
    names = [name for name in operators(mod) if name in ("relax.matmul", "relax.multiply", "relax.divide")]
    products = [place for place, name in enumerate(names) if name == "relax.matmul"]
    assert names[: products[0]] in ([], ["relax.multiply"])  # that of what is read
    assert sorted(names) == ["relax.divide", *["relax.matmul"] * 2, *["relax.multiply"] * 2]
    machine = tvm.relax.VirtualMachine(lowering.build(mod, LLVM), tvm.cpu())
    found = machine["main"](*(tvm.runtime.tensor(each.numpy()) for each in inputs))
    for y, expected in zip(found, scaled(*(each.double() for each in inputs)), strict=True):
        np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=0, atol=1e-5)


def test_other_choices_are_no_softmax() -> None:
    """The largest number of a column is none of a row, though a square of scores takes both."""
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((5, 5), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            found = []
            for keepdims in (True, False):
                some = relax.op.astype(relax.op.logical_not(relax.op.equal(x, relax.const(-np.inf))), "int8")
                most = relax.op.astype(relax.op.max(some, axis=[-1], keepdims=keepdims), "bool")
                choice = relax.op.where(relax.op.logical_not(most), relax.const(0.0), relax.op.nn.softmax(x))
                found.append(builder.emit(choice))
            output = builder.emit_output(relax.Tuple(found))
        builder.emit_func_output(output)
    names = operators(with_safe_softmax(builder.get()))
    assert [names.count(f"relax.{each}") for each in ("nn.safe_softmax", "where", "nn.softmax")] == [1, 1, 1]


def test_attention_of_torch() -> None:
    """Numbers that scale factors come behind the product, softmax is one operator, and each layer one kernel."""
    torch.manual_seed(6)
    module, x = Scaled().eval(), torch.randn(2, 21, 32)
    with torch.no_grad():
        expected = module.double()(x.double()).numpy()
        module.float()
    mod = with_safe_softmax(scale_results(tvmconv.import_model(module, (x,)).mod))
    narrow, word = with_precision(with_rows_in_matrices(mod, SM_90), SM_90, "float16")
    mod, layers = use_kernels(narrow, SM_90, "auto", word)
    mod, products = use_products(mod, SM_90, word)
    assert [str(layer.convolution.workload.epilogue) for layer in layers] == [*["shift"] * 3, "shift+relu"]
    assert [layer.convolution.workload.dtype for layer in products] == ["float16"] * 2
    names = operators(mod)
    assert "relax.nn.safe_softmax" in names
    assert {"relax.where", "relax.max", "relax.strided_slice"}.isdisjoint(names)
    machine = tvm.relax.VirtualMachine(lowering.build(with_twins(mod, {}), LLVM), tvm.cpu())
    y = machine["main"](tvm.runtime.tensor(x.numpy())).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_machine_code_of_a_block() -> None:
    """Between the layers there are four kernels, without spills: values in rows of terms, products, and softmax."""
    model = tvmconv.import_model(Block(64, 2).eval(), (torch.zeros(2, 21, 64),))
    network = tvmconv.build(model, SM_90, precision="float16")
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, "sm_90")]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    names = [kernel.name for kernel in kernels]
    assert sum("product" in name for name in names) == 2
    assert sum("transpose" in name for name in names) == sum("softmax" in name for name in names) == 1
