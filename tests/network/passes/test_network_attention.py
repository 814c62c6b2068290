"""Attention of a network on a GPU: products where their factors lie, rows that stay padded, scales and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax

import tvmconv
from tests.emulated.device_functions import device_functions
from tests.emulated.gpu import Emulator
from tests.network.passes.attention_cases import LLVM, SM_90, Block, Shapes, factors, first_result
from tests.shared.between_cases import Function
from tests.shared.network_graph import operators
from tests.shared.passes import use_kernels, use_products, with_precision
from tests.shared.sparing import every
from tvmconv import lowering
from tvmconv.network.passes.convolutions.functions import NetworkKernel, add_kernel
from tvmconv.network.passes.early.heads import scale_results, slice_single_indices
from tvmconv.network.passes.early.matrices import with_rows_in_matrices
from tvmconv.network.passes.early.safe_softmax import with_safe_softmax
from tvmconv.network.passes.fusible import permute_slices
from tvmconv.schedules.cuda.tensor import template as tensor
from tvmconv.targets import cuda

torch = pytest.importorskip("torch")


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
    y = first_result(mod, x)
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

    monkeypatch.setattr("tvmconv.network.passes.products.add_kernel", noted)
    generator = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(shape, generator=generator).half() for shape in shapes)
    mod, _ = use_products(tvmconv.import_model(Function(function), inputs).mod, SM_90)
    assert found == names
    y = first_result(mod, *inputs)
    expected = function(*(each.double() for each in inputs)).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_parts_of_keys_are_read_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel that takes them apart reads nothing from behind the tensor that they lie in, for either part."""
    config = tensor.Config(64, 16, warps_m=1, warps_n=1, num_stages=2, wgmma=True)
    monkeypatch.setattr(tensor, "default_config", lambda *_: config)

    def scores(x: torch.Tensor) -> torch.Tensor:
        q, k = x.reshape(2, 13, 2, 4, 32).permute(2, 0, 3, 1, 4).unbind(0)
        return q @ k.transpose(-1, -2)

    x = torch.randn(2, 13, 256)
    mod, _ = use_products(slice_single_indices(tvmconv.import_model(Function(scores), (x,)).mod), SM_90)
    (name,) = (name for name in mod.get_global_vars() if "product" in name.name_hint)
    packing, _ = device_functions(mod[name], SM_90)
    arrays = {"w": x.numpy().reshape(-1), "packed": np.full((2, 8, 16, 32), np.nan, "float32")}
    Emulator(packing, arrays)
    keys = x.reshape(2, 13, 2, 4, 32)[:, :, 1].permute(0, 2, 1, 3).reshape(8, 13, 32)
    np.testing.assert_allclose(arrays["packed"].astype("float64").sum(0)[:, :13], keys.numpy(), rtol=1e-6)


class Biased(torch.nn.Module):
    """Attention with a bias for each pair of positions, as windows have."""

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
    y = first_result(mod, *inputs)
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
    y = first_result(mod, *inputs)
    expected = function(*(each.double() for each in inputs))
    expected = (expected[0] if isinstance(expected, tuple) else expected).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=4e-3 * np.abs(expected).max())


def test_parts_are_slices() -> None:
    """An index on an axis is no table's, and each part that is read is permuted by itself."""

    def parts(x: torch.Tensor) -> torch.Tensor:
        y = x.reshape(2, 5, 3, 4).permute(2, 0, 1, 3)
        return y[0] * y[2]

    mod = tvmconv.import_model(Function(parts), (torch.zeros(2, 5, 12),)).mod
    assert "relax.take" not in operators(mod)
    names = operators(permute_slices(slice_single_indices(mod)))
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
    products = [index for index, name in enumerate(names) if name == "relax.matmul"]
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
    y = first_result(mod, x)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_machine_code_of_a_block() -> None:
    """Between the layers there are four kernels, without spills: values in rows of terms, products, and softmax.

    The heads of the block are too wide for one kernel.
    """
    model = tvmconv.import_model(Block(272, 2).eval(), (torch.zeros(2, 21, 272),))
    network = tvmconv.build(model, SM_90, precision="tf32")
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, "sm_90")]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    names = [kernel.name for kernel in kernels]
    assert sum("product" in name for name in names) == 2
    assert sum("transpose" in name for name in names) == sum("softmax" in name for name in names) == 1
