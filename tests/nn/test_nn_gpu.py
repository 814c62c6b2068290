"""Layers of torch by tvmconv's kernels, and the gradients of depthwise convolutions, on a real GPU."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.nn.nn_cases import DTYPES, LAYERS, Layer, check
from tests.nn.sequence_cases import CASES as SEQUENCES
from tests.nn.sequence_cases import Sequences
from tests.nn.sequence_cases import check as check_sequences
from tests.schedules.cases.diagonals import CASES as DIAGONALS
from tests.schedules.cases.gradients import CASES, GRADIENTS, SINGLE, any_batch, geometry
from tests.schedules.cases.gradients import check as check_gradient
from tvmconv.dispatch import select
from tvmconv.runtime import gradients
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.runtime.operator import compile_problem
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands

torch = pytest.importorskip("torch")

from tvmconv.nn import functional, replace  # noqa: E402

nn = torch.nn


PRECISION = {"input_gradient": "strict", "weight_gradient": "float32"}
"""What a gradient in float32 promises: that by the weight may be of three TF32 products."""

by_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


@pytest.mark.parametrize("of", GRADIENTS)
@pytest.mark.parametrize("name", CASES)
def test_gradients(name: str, of: str) -> None:
    workload = CASES[name]
    arrays = random_operands(workload, direction=of)
    first, second = (to_torch(array).cuda() for label, array in arrays.items() if label != "output")
    function = getattr(gradients, of)
    result = function(first, second, geometry(workload))
    check_gradient(of, workload, arrays, to_numpy(result.cpu()), PRECISION[of])
    assert torch.equal(result, function(first, second, geometry(workload)))


@pytest.mark.parametrize("name", DIAGONALS)
def test_gradients_on_diagonals(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    workload, config = DIAGONALS[name]
    target = resolve_target("cuda")
    problem = any_batch("weight_gradient", workload, target)
    operator = compile_problem(problem, select(problem, target, config), target)
    monkeypatch.setattr(gradients, "_calls", gradients.Calls())
    monkeypatch.setattr(gradients, "operator_for", lambda *_: operator)
    arrays = random_operands(workload, direction="weight_gradient")
    dy, x = (to_torch(array).cuda() for label, array in arrays.items() if label != "output")
    result = gradients.weight_gradient(dy, x, geometry(workload))
    check_gradient("weight_gradient", workload, arrays, to_numpy(result.cpu()), "float32")
    assert torch.equal(result, gradients.weight_gradient(dy, x, geometry(workload)))


@pytest.mark.parametrize("of", GRADIENTS)
@pytest.mark.parametrize("name", SINGLE)
def test_gradients_in_channels_last(name: str, of: str) -> None:
    """Tensors in channels_last are not copied, and the order of sums depends on shapes alone."""
    workload = SINGLE[name]
    arrays = random_operands(workload, direction=of)
    given = [to_torch(array).cuda() for label, array in arrays.items() if label != "output"]
    given = [
        tensor if label == "w" else tensor.to(memory_format=torch.channels_last)
        for label, tensor in zip(arrays, given, strict=False)
    ]
    function = getattr(gradients, of)
    result = function(*given, geometry(workload))
    check_gradient(of, workload, arrays, to_numpy(result.contiguous().cpu()), PRECISION[of])
    assert torch.equal(result, function(*given, geometry(workload)))


@by_dtype
@pytest.mark.parametrize("name", SEQUENCES)
def test_causal_convolutions(name: str, dtype: Any) -> None:
    check_sequences(SEQUENCES[name], dtype, "cuda")


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("taps", [2, 4, 31, 64, 128])
@pytest.mark.parametrize("dtype", DTYPES[::2], ids=str)
def test_long_sequences(dtype: Any, taps: int, channels_last: bool) -> None:
    check_sequences(Sequences((2, 256, 2048), taps, channels_last=channels_last), dtype, "cuda")


def test_a_step_of_sequences_in_a_cuda_graph() -> None:
    x, w, bias = (tensor.detach() for tensor in SEQUENCES["4-taps"].tensors(device="cuda"))
    whole = functional.causal_conv1d(x, w, bias, "silu")
    state, element = torch.zeros(2, 6, 3, device="cuda"), torch.zeros(2, 6, device="cuda")
    functional.causal_conv1d_update(element, state, w, bias, "silu")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step = functional.causal_conv1d_update(element, state, w, bias, "silu")
    state.zero_()
    for column in range(x.shape[2]):
        element.copy_(x[..., column])
        graph.replay()
        torch.testing.assert_close(step, whole[..., column])


@by_dtype
@pytest.mark.parametrize("name", LAYERS)
def test_results_and_gradients_are_those_of_torch(name: str, dtype: Any) -> None:
    check(LAYERS[name], dtype, "cuda")


LARGE = {
    "112": Layer((32, 32, 112, 112), (32, 1, 3, 3), padding=1),
    "112-stride-2": Layer((16, 96, 112, 112), (96, 1, 3, 3), stride=2, padding=1),
    "7": Layer((32, 960, 7, 7), (960, 1, 3, 3), padding=1),
    "28-5x5": Layer((32, 240, 28, 28), (240, 1, 5, 5), padding=2),
    "28-5x5-stride-2": Layer((32, 240, 28, 28), (240, 1, 5, 5), stride=2, padding=2),
    "28-7x7": Layer((32, 192, 28, 28), (192, 1, 7, 7), padding=3),
    "56-31x31": Layer((4, 64, 56, 56), (64, 1, 31, 31), padding=15),
    "56-13x13-stride-2": Layer((4, 64, 56, 56), (64, 1, 13, 13), stride=2, padding=6),
    "one-channel": Layer((8, 1, 512, 512), (1, 1, 5, 5), padding=2),
    "multiplier-2": Layer((8, 64, 56, 56), (128, 1, 3, 3), padding=2, dilation=2),
    "row": Layer((8, 512, 4096), (512, 1, 4), padding=3),
}


@by_dtype
@pytest.mark.parametrize("name", LARGE)
def test_large_layers(name: str, dtype: Any) -> None:
    check(LARGE[name], dtype, "cuda")


@pytest.mark.parametrize("name", ["112-stride-2", "28-7x7", "56-31x31", "multiplier-2"])
def test_large_layers_in_channels_last(name: str) -> None:
    """Results are those of contiguous tensors, also where a kernel is too large, or has siblings, and x is copied."""
    layer = LARGE[name]
    x, *others = layer.tensors(device="cuda")
    last = x.detach().to(memory_format=torch.channels_last).requires_grad_()
    results = [layer.convolve(each, *others) for each in (x, last)]
    assert results[1].is_contiguous(memory_format=torch.channels_last)
    dy = torch.randn_like(results[0])
    found = [torch.autograd.grad(one, (each, *others), dy) for one, each in zip(results, (x, last), strict=True)]
    for one, other in zip((results[1], *found[1]), (results[0], *found[0]), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=2e-5 * float(other.detach().abs().max()))


@pytest.mark.parametrize("name", ["stride-2", "multiplier-3", "3x3"])
def test_every_batch(name: str) -> None:
    layer = LAYERS[name]
    for batch in (1, 2, 3, 7, 8, 64, 5, 0, 130):
        layer = Layer((batch, *layer.x[1:]), layer.w, layer.bias, layer.stride, layer.padding, layer.dilation)
        if batch:
            check(layer, device="cuda")
        else:
            x, *others = layer.tensors(device="cuda")
            layer.convolve(x, *others).sum().backward()
            assert not any(each.grad.any() for each in others)


def test_in_a_cuda_graph_and_on_another_stream() -> None:
    layer = LAYERS["stride-2"]
    tensors = layer.tensors(device="cuda")

    def step() -> tuple[Any, ...]:
        return torch.autograd.grad(layer.convolve(*tensors).square().sum(), tensors)

    expected = step()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        aside = step()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = step()
    for _ in range(2):
        graph.replay()
        torch.cuda.synchronize()
        for one, other, plain in zip(captured, aside, expected, strict=True):
            assert torch.equal(one, plain)
            assert torch.equal(other, plain)


def test_wrong_devices_are_refused() -> None:
    layer = LAYERS["3x3"]
    x, w, bias = layer.tensors()
    for given, message in (
        ((x.cuda(), w, bias), "w is .on cpu.; expected a tensor on cuda:0"),
        ((x.cuda(), w.cuda(), bias), "bias is .on cpu."),
        ((x, w.cuda(), bias), "w is .on cuda:0.; expected a tensor on cpu"),
    ):
        with pytest.raises(RuntimeError, match=message):
            layer.convolve(*given)


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
def test_training_under_autocast(dtype: Any) -> None:
    """Losses go down as torch's own do, compiled or not."""
    torch.manual_seed(0)
    layers = (
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1, groups=32), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 64, 5, padding=2, groups=64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 4),
    )  # fmt: skip
    plain = nn.Sequential(*layers).cuda()
    models = [plain, replace(copy.deepcopy(plain)), replace(copy.deepcopy(plain))]
    models[2] = torch.compile(models[2], fullgraph=True, backend="aot_eager")
    x, y = torch.randn(16, 3, 24, 24, device="cuda"), torch.randint(4, (16,), device="cuda")
    losses = []
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses.append([])
        for _ in range(8):
            optimizer.zero_grad()
            with torch.autocast("cuda", dtype=dtype):
                loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=0.1, atol=0.02)
    torch.testing.assert_close(torch.tensor(losses[2]), torch.tensor(losses[1]), rtol=0.1, atol=0.02)
    assert losses[1][-1] < losses[1][0]
