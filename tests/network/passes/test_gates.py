"""Gates of squeeze and excitation on a GPU: one kernel for both layers, its numbers, and where there are two."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import tvm
from tvm import tirx

import tvmconv
from tests.emulated.memory import HazardError
from tests.emulated.network import SM_90, Run, lowered, run
from tests.network.passes.gate_cases import CASES, Case, nn, torch
from tests.shared.passes import use_kernels, with_precision
from tests.shared.sparing import every
from tvmconv import lowering
from tvmconv.autotvm.task import extract_from_model
from tvmconv.lowering import is_scheduled
from tvmconv.network.graph.graph import blocks_of, calls
from tvmconv.network.graph.layers import Layer
from tvmconv.targets import cuda


def compiled(model: Any, word: str = "float32") -> tuple[Any, tuple[Layer, ...]]:
    """Return a module with its kernels for a GPU, and the layers."""
    mod, precision = with_precision(model.mod, SM_90, word)
    mod, layers = use_kernels(mod, SM_90, "never", precision)
    return lowered(mod), layers


def check(found: Run, case: Case, x: Any, share: float) -> None:
    with torch.no_grad():
        expected = case.module.double()(x.double()).numpy()
    np.testing.assert_allclose(found.outputs[0], expected, rtol=0, atol=share * np.abs(expected).max())


HALVES = (("efficientnet", "float16"), ("odd", "bfloat16"), ("large", "float16"))


@pytest.mark.parametrize(("name", "word"), every(2, [*((name, "float32") for name in CASES), *HALVES]))
def test_both_layers_are_one_kernel(name: str, word: str) -> None:
    case = CASES[name]
    mod, layers = compiled(tvmconv.import_model(case.module, (case.x,)), word)
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/gate"] * 2
    (function,) = {layer.function for layer in layers}
    assert function.startswith("tvmconv_gate_")
    assert all(layer.convolution.workload.dtype == word for layer in layers)
    found = run(mod, [case.x.numpy()])
    check(found, case, case.x, {"float32": 1e-6, "float16": 1e-3, "bfloat16": 1e-2}[word])
    assert not found.left
    assert len(found.kernels) == 3  # the means, the gate, and the products
    for source in cuda.sources(lowering.build(mod, SM_90).mod):
        assert "int64_t" not in source[source.index("__global__") :]
        for kernel in cuda.kernel_resources(source, "sm_90"):
            assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)


def test_any_batch() -> None:
    case = CASES["efficientnet"]
    sizes = {0: torch.export.Dim("n", min=1, max=500)}
    program = torch.export.export(case.module, (case.x,), dynamic_shapes=(sizes,))
    mod, layers = compiled(tvmconv.import_model(program))
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/gate"] * 2
    for batch in (1, 5):
        x = case._replace(batch=batch).x
        check(run(mod, [x.numpy()]), case, x, 1e-6)


@pytest.mark.parametrize(("channels", "squeezed"), [(64, 12), (64, 1), (1, 12)])
def test_linear_layers(channels: int, squeezed: int) -> None:
    """Layers of one channel have their weight as depthwise convolutions have it."""
    layers = nn.Linear(channels, squeezed), nn.ReLU(), nn.Linear(squeezed, 40), nn.Sigmoid()
    module = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), *layers)
    x = torch.randn(2, channels, 3, 3, generator=torch.Generator().manual_seed(2))
    mod, layers = compiled(tvmconv.import_model(module.eval(), (x,)))
    assert [layer.kernel for layer in layers] == ["tvmconv cuda/gate"] * 2
    with torch.no_grad():
        np.testing.assert_allclose(run(mod, [x.numpy()]).outputs[0], module(x).numpy(), atol=1e-6)
    lowering.build(mod, SM_90)


@pytest.mark.parametrize("case", [Case(2, 64, 16, twice=True), Case(20_000, 1152, 288)], ids=["read twice", "many"])
def test_two_kernels_where_they_take_less(case: Case) -> None:
    """What is read elsewhere is stored, and large batches are faster with products on tensor cores."""
    mod = tvmconv.import_model(case.module, (case.x[:1].expand(case.batch, -1, -1, -1),)).mod
    _, layers = use_kernels(mod, SM_90, "never")
    assert not [layer for layer in layers if layer.kernel == "tvmconv cuda/gate"]


@pytest.mark.parametrize(("widths", "pair"), [((600, 20, 10, 200), (1, 2)), ((200, 10, 20, 600), (0, 1))], ids=str)
def test_of_two_gates_that_share_a_layer_the_one_is_taken_that_saves_more(
    widths: tuple[int, ...], pair: tuple[int, int]
) -> None:
    sizes = list(pairwise(widths))
    module = nn.Sequential(*(layer for inputs, outputs in sizes for layer in (nn.Linear(inputs, outputs), nn.ReLU())))
    model = tvmconv.import_model(module.eval(), (torch.zeros(1, widths[0]),))
    _, layers = use_kernels(model.mod, SM_90, "never")
    assert [layer.kernel == "tvmconv cuda/gate" for layer in layers] == [number in pair for number in range(3)]


def test_layers_of_two_types_have_two_kernels() -> None:
    class Mixed(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self, dtype: Any) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(64, 12), nn.Linear(12, 40).to(dtype)

        def forward(self, x: Any) -> Any:
            return self.second(torch.relu(self.first(x)).to(self.second.weight.dtype))

    for dtype, count in ((torch.float32, 2), (torch.float16, 0)):
        _, layers = use_kernels(tvmconv.import_model(Mixed(dtype).eval(), (torch.zeros(2, 64),)).mod, SM_90, "never")
        assert [layer.kernel for layer in layers].count("tvmconv cuda/gate") == count


def test_reasons_and_tasks() -> None:
    """The layers say which kernel computes them, and it is what is tuned for them."""
    case = CASES["efficientnet"]
    model = tvmconv.import_model(case.module, (case.x,))
    _, (first, second) = compiled(model)
    assert first.reason == second.reason
    assert first.convolution.name in first.reason
    assert second.convolution.name in first.reason
    assert "default configuration" in first.reason
    assert re.search(r"estimated at \d+ clocks, apart at \d+", first.reason)
    (task,) = extract_from_model(model, SM_90)
    assert first.config == {"threads": task.space.default.threads}
    assert task.name == "cuda/gate"
    assert task.problem.workload.first == first.convolution.workload
    assert {config.threads for config in task.space.configs} == {128, 256, 512, 1024}


def test_a_missing_barrier_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tvmconv.schedules.cuda.gate.kernel.barrier", lambda: tirx.Evaluate(tirx.const(0)))
    monkeypatch.setattr("tvm.s_tir.transform.ThreadSync", lambda scope: tvm.transform.Sequential([]))  # adds its own
    case = CASES["mobilenet"]
    mod, _ = compiled(tvmconv.import_model(case.module, (case.x,)))
    with pytest.raises(HazardError):
        run(mod, [case.x.numpy()])


def test_between_convolutions_there_are_three_kernels() -> None:
    """The means, the gate, and the products: in NHWC and half precision nothing else casts or moves."""
    excitation = Case(8, 96, 8).module
    module = nn.Sequential(nn.Conv2d(64, 96, 3, padding=1), excitation, nn.Conv2d(96, 64, 3, padding=1)).eval()
    mod, layers = compiled(tvmconv.import_model(module, (torch.zeros(8, 64, 28, 28),)), "float16")
    assert layers[0].convolution.workload.out_layout == "NHWC"
    called = [call.args[0] for block in blocks_of(mod) for call in block.values.values() if calls(call, "call_tir")]
    names = [var.name_hint for var in called if is_scheduled(mod[var])]
    first, second = (index for index, name in enumerate(names) if name.startswith("tvmconv_tensor_"))
    between = names[first + 1 : second]
    assert ["mean" in between[0], "tvmconv_gate_" in between[1], "multiply" in between[2]] == [True] * 3
    assert len(between) == 3
