"""One kernel of attention on a GPU: which attention of networks gets it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm
from onnx.reference import ReferenceEvaluator

import tvmconv
from tests.emulated.network import lowered, run
from tests.network.passes.attention_cases import LLVM, SM_90, Block, factors
from tests.shared.between_cases import Function
from tests.shared.network_graph import Graph, operators
from tests.shared.passes import use_fused, use_kernels, use_products, with_precision
from tvmconv.autotvm.task import extract_from_model
from tvmconv.dispatch import select
from tvmconv.network.passes.context import Context
from tvmconv.network.passes.early.heads import scale_results, slice_single_indices
from tvmconv.network.passes.early.matrices import with_rows_in_matrices
from tvmconv.network.passes.early.safe_softmax import with_safe_softmax
from tvmconv.network.passes.fused import fused_problems
from tvmconv.targets import cuda, resolve_target

torch = pytest.importorskip("torch")


def prepared(module: Any, inputs: tuple[Any, ...] | None, word: str = "float16") -> tvm.IRModule:
    """Return a network's module in a precision, as the pass gets it."""
    mod = with_safe_softmax(scale_results(slice_single_indices(tvmconv.import_model(module, inputs).mod)))
    narrow, precision = with_precision(with_rows_in_matrices(mod, SM_90), SM_90, word)
    mod, _ = use_kernels(narrow, SM_90, "auto", precision)
    return mod


class Multihead(torch.nn.Module):
    """Attention as torch's layer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.MultiheadAttention(64, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x, x, x, need_weights=False)[0]


MODULES = {"own": Block(64, 2), "torch": Block(64, 2, scaled=True), "multihead": Multihead()}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("word", ["float16", pytest.param("bfloat16", marks=pytest.mark.release), "float32"])
def test_blocks_of_transformers(name: str, word: str) -> None:
    """Between the layers there is one kernel, which reads and stores where these do."""
    mod, layers = use_fused(prepared(MODULES[name].eval(), (torch.zeros(2, 21, 64),), word), SM_90)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/attention"] * 2
    assert [layer.convolution.workload.dtype for layer in layers] == [word] * 2
    names = operators(mod)
    indices = [index for index, name in enumerate(names) if name == "relax.call_tir"]
    assert len(indices) == 3
    assert set(names[indices[0] + 1 : indices[-1]]) == {"relax.reshape", "relax.call_tir"}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("word", ["float16", "tf32"])
def test_tasks_are_the_kernels_of_a_network(name: str, word: str) -> None:
    model = tvmconv.import_model(MODULES[name].eval(), (torch.zeros(2, 21, 64),))
    *_, task = extract_from_model(model, SM_90, precision=word)
    mod = prepared(MODULES[name], (torch.zeros(2, 21, 64),), word)
    (problem,) = fused_problems(mod, Context(SM_90, WORDS.get(word, word)))
    assert (task.name, task.problem) == ("cuda/attention", problem)
    assert task.space.default == select(problem, SM_90).config


WORDS = {"float16": "float32"}
"""The precision of a network in half precision."""


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return queries, keys and values of three heads, (N, 3, L, 16), of (N, L, 144)."""
    return tuple(x.reshape(*x.shape[:2], 3, 3, 16).permute(2, 0, 3, 1, 4).unbind(0))


def merged(y: torch.Tensor) -> torch.Tensor:
    return y.transpose(1, 2).flatten(2)


def attend(q: Any, k: Any, v: Any, change: Callable[[Any], Any] = lambda scores: scores) -> Any:
    return torch.softmax(change(q @ k.transpose(-1, -2)), -1) @ v


torch.manual_seed(1)
WINDOWS, MASK = torch.randn(3, 21, 21).half(), torch.randn(2, 1, 1, 21).half()

TAKEN: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "parts": (lambda x: merged(attend(*parts(x), lambda s: s * 0.25)), ((2, 21, 144),)),
    "alone": (lambda q, k, v: attend(q, k, v), ((2, 3, 9, 16), (2, 3, 11, 16), (2, 3, 11, 24))),
    "one-matrix": (lambda q, k, v: attend(q, k, v), ((9, 16), (11, 16), (11, 16))),
    "transposed": (
        lambda q, k, v: torch.softmax(q.transpose(1, 2) @ k, -1) @ v.transpose(1, 2),
        ((2, 16, 9), (2, 16, 11), (2, 24, 11)),
    ),
    "odd-step": (lambda q, k: attend(q[..., 1:17], k[..., 1:17], k[..., 2:18]), ((2, 9, 20), (2, 11, 20))),
    "divided": (lambda x: merged(attend(*parts(x), lambda s: s / -3 * 2)), ((2, 21, 144),)),
    "windows": (
        lambda x: merged(attend(*parts(x), lambda s: 2 * (s / 4 + WINDOWS) - MASK)),
        ((2, 21, 144),),
    ),
    "shifted-windows": (
        lambda x: merged(
            attend(*parts(x), lambda s: ((s + WINDOWS).reshape(2, 2, 3, 21, 21) + MASK[:, None]).flatten(0, 1))
        ),
        ((4, 21, 144),),
    ),
}
"""Attention that gets the kernel, with the shapes of its inputs."""


ERRORS = {"float16": 2e-3, "float32": 3e-6, "tf32": 2e-3}
"""The errors allowed, as shares of the largest result."""


@pytest.mark.parametrize("name", TAKEN)
@pytest.mark.parametrize("word", ["float16", "float32", pytest.param("tf32", marks=pytest.mark.release)])
def test_attention_of_inputs(name: str, word: str) -> None:
    """It is read where it lies, or moved before, and is right; nothing else multiplies."""
    function, shapes = TAKEN[name]
    generator = torch.Generator().manual_seed(3)
    dtype = torch.float16 if word == "float16" else torch.float32
    inputs = tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)
    model = tvmconv.import_model(Function(function), inputs)
    mod, layers = use_fused(slice_single_indices(model.mod), SM_90, "float32" if word == "float16" else word)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/attention"] * 2
    found = run(lowered(mod), [each.numpy() for each in inputs])
    assert sum("attention" in kernel for kernel in found.kernels) == 1
    expected = function(*(each.double() for each in inputs)).numpy()
    (y,) = found.outputs
    np.testing.assert_allclose(y, expected, rtol=0, atol=ERRORS[word] * np.abs(expected).max())


@pytest.mark.parametrize(
    "options",
    [{}, {"is_causal": True}, {"attn_mask": torch.full((21, 21), -torch.inf).triu(0)}],
    ids=["plain", "causal", "mask"],
)
def test_attention_of_torch(options: dict[str, Any]) -> None:
    """Its scales come behind the product, and of a row that is masked there are zeros."""

    def attention(x: torch.Tensor) -> torch.Tensor:
        kept = {name: each.to(x.dtype) if torch.is_tensor(each) else each for name, each in options.items()}
        return merged(torch.nn.functional.scaled_dot_product_attention(*parts(x), **kept))

    x = torch.randn(2, 21, 144, generator=torch.Generator().manual_seed(3))
    mod, layers = use_fused(prepared(Function(attention), (x,)), SM_90)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/attention"] * 2
    (y,) = run(lowered(mod), [x.numpy()]).outputs
    expected = attention(x.double()).numpy()
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


ONNX: dict[str, tuple[Callable[[Graph], tuple[str, ...]], dict[str, Any]]] = {
    "plain": (lambda g: (), {}),
    "causal": (lambda g: (), {"is_causal": 1}),
    "scaled": (lambda g: (), {"scale": 0.5}),
    "mask": (lambda g: (g.random(9, 9),), {}),
}
"""The masks of ONNX's Attention and its attributes."""


@pytest.mark.parametrize("name", ONNX)
def test_attention_of_onnx(name: str) -> None:
    """Its definition chooses between numbers and zeros for rows that are masked whole, of which there are none."""
    masks, attributes = ONNX[name]
    graph, exact = (Graph((2, 3, 9, 16), dtype, opset=23) for dtype in ("float32", "float64"))
    models = [g.model(g.node("Attention", "x", "x", "x", *masks(g), **attributes)) for g in (graph, exact)]
    mod, layers = use_fused(prepared(models[0], None), SM_90)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/attention"] * 2
    x = np.random.default_rng(3).standard_normal((2, 3, 9, 16)).astype("float16").astype("float64")
    (y,) = run(lowered(mod), [x.astype("float32")]).outputs
    (expected,) = ReferenceEvaluator(models[1]).run(None, {"x": x})
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-3 * np.abs(expected).max())


def test_parts_are_read_in_place() -> None:
    function, shapes = TAKEN["parts"]
    model = tvmconv.import_model(Function(function), (torch.zeros(shapes[0]).half(),))
    mod, _ = use_fused(slice_single_indices(model.mod), SM_90)
    assert set(operators(mod)) == {"relax.reshape", "relax.call_tir"}


LEFT: dict[str, Callable[..., Any]] = {
    "depth": lambda q, k, v: attend(q[..., :12], k[..., :12], v),
    "scores-are-read": lambda q, k, v: (lambda s: torch.softmax(s, -1) @ v + s.sum())(q @ k.transpose(-1, -2)),
    "shares-are-read": lambda q, k, v: (lambda p: p @ v + p.sum())(torch.softmax(q @ k.transpose(-1, -2), -1)),
    "computed-mask": lambda q, k, v: attend(q, k, v, lambda s: s + q.sum(-1, keepdim=True)),
    "factors-of-columns": lambda q, k, v: attend(q, k, v, lambda s: s * WINDOWS[0, 0]),
    "rounded-to-integers": lambda q, k, v: attend(q, k, v, lambda s: s.int().half()),
    "other-axis": lambda q, k, v: torch.softmax(q @ k.transpose(-1, -2), -2) @ v,
    "no-softmax": lambda q, k, v: (q @ k.transpose(-1, -2) * 0.125) @ v,
}
"""What is left to kernels of products, by what is in the way."""


@pytest.mark.parametrize("name", LEFT)
def test_products_that_stay_apart(name: str) -> None:
    inputs = tuple(factors(21, 16, "float16"))
    mod, layers = use_fused(tvmconv.import_model(Function(LEFT[name]), inputs).mod, SM_90)
    assert not layers
    _, products = use_products(mod, SM_90)
    assert [layer.kernel for layer in products] == ["tvmconv cuda/tensor"] * 2


ELSEWHERE = {
    "cpu": (LLVM, "float32"),
    "strict": (SM_90, "strict"),
    "without-tensor-cores": (resolve_target({"kind": "cuda", "arch": "sm_75"}), "float32"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_elsewhere_there_is_none(name: str) -> None:
    """Tensor cores keep no "strict" promise: their sums are not those of multiply-adds."""
    target, word = ELSEWHERE[name]
    mod = prepared(Block(64, 2).eval(), (torch.zeros(2, 21, 64),), "tf32")
    assert use_fused(mod, SM_90)[1]
    assert not use_fused(mod, target, word)[1]


@pytest.mark.parametrize("word", ["float16", "float32", "tf32"])
def test_network(word: str) -> None:
    """The network says what runs its products, and has one kernel between its layers."""
    model = tvmconv.import_model(Block(64, 2).eval(), (torch.zeros(2, 21, 64),))
    network = tvmconv.build(model, SM_90, precision=word)
    names = [layer.kernel for layer in network.layers]
    assert names == ["tvmconv cuda/tensor"] * 2 + ["tvmconv cuda/attention"] * 2
    assert all(layer.config["keys"] == 64 and "softmax" in layer.reason for layer in network.layers[2:])
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, "sm_90")]
    assert all(each.spill_store_bytes == each.spill_load_bytes == 0 for each in kernels)
    assert sum("attention" in each.name for each in kernels) == 1
    assert not any(word in each.name for each in kernels for word in ("product", "softmax", "transpose"))
