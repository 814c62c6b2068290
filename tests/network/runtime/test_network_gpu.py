"""Networks on a real GPU: their own CUDA graphs, and graphs that callers capture around them."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

import pytest
import tvm

import tvmconv
from tests.shared.torch_modules import called_in_a_process, torch

SHAPE = (2, 3, 24, 21)


@pytest.fixture(scope="module")
def module() -> torch.nn.Module:
    """Return a module with convolutions of all templates, one of them sparse, and layers of TVM between and behind."""
    torch.manual_seed(5)
    layers = [
        torch.nn.Conv2d(3, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3),
        torch.nn.Sigmoid(),
        torch.nn.Conv2d(32, 32, 1),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
        torch.nn.Softmax(dim=1),
    ]
    layers[6].weight.data[torch.rand(32, 32, 1, 1) < 0.9] = 0
    return torch.nn.Sequential(*layers).eval()


def built(module: torch.nn.Module, graphs: bool) -> tvmconv.Network:
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": graphs}):
        return tvmconv.build(tvmconv.import_model(module, (torch.zeros(SHAPE),)), "cuda")


@pytest.fixture(scope="module")
def with_graphs(module: torch.nn.Module) -> tvmconv.Network:
    return built(module, graphs=True)


@pytest.fixture(scope="module", params=[False, True], ids=["launches", "graphs"])
def network(module: torch.nn.Module, with_graphs: tvmconv.Network, request: pytest.FixtureRequest) -> tvmconv.Network:
    return with_graphs if request.param else built(module, graphs=False)


def images(seed: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).cuda()


def check(module: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    with torch.no_grad():
        expected = deepcopy(module).cuda().double()(x.double())
    assert (y - expected).abs().max() < 1e-5 * expected.abs().max()


def test_every_call_has_its_own_output(module: torch.nn.Module, network: tvmconv.Network) -> None:
    """The first call captures, the others replay; no call overwrites the output of another."""
    inputs = [images(seed) for seed in range(5)]
    for x, y in zip(inputs, [network(x) for x in inputs], strict=True):
        check(module, x, y)


def test_arrays_of_the_host(module: torch.nn.Module, network: tvmconv.Network) -> None:
    for seed in range(3):
        x = images(seed)
        check(module, x, torch.from_numpy(network(x.cpu().numpy())).cuda())


def test_current_stream(module: torch.nn.Module, network: tvmconv.Network) -> None:
    """The launches wait for earlier work on the stream, here for a long time before the input is there."""
    x, later = images(1), torch.zeros(SHAPE, device="cuda")
    network(later)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        later.copy_(x)
        y = network(later)
        later.zero_()
    stream.synchronize()
    check(module, x, y)


def test_a_graph_of_the_caller(module: torch.nn.Module, with_graphs: tvmconv.Network) -> None:
    """Its replays compute anew; calls in between, of the network's own graph, and replays do not disturb each other.

    Its memory is not given back.
    """
    x = images(1)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            with_graphs(x)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=stream):
            y = with_graphs(x)
        for seed in (2, 3, 4):
            x.copy_(images(seed))
            other = images(seed + 10)
            graph.replay()
            check(module, other, with_graphs(other))
            check(module, x, y)
            with_graphs.release_memory()
    stream.synchronize()


def test_a_process_that_ends_with_a_network(module: torch.nn.Module, network: tvmconv.Network, tmp_path: Path) -> None:
    """A network that was loaded and run with its graph may exist when the process ends."""
    x = images(7)
    for y in called_in_a_process(network, x.cpu().numpy(), tmp_path):
        check(module, x, torch.from_numpy(y).cuda())


def test_a_profile_has_each_kernel_and_leaves_calls_as_they_were(with_graphs: tvmconv.Network) -> None:
    x = torch.rand(SHAPE, device="cuda")
    before = with_graphs(x)
    rows = with_graphs.profile(x, repeat=3).rows
    told = {layer.convolution.name for layer in with_graphs.layers if layer.function is not None}
    assert told <= {name for row in rows for name in row.name.split(", ")}
    assert all(0 < row.seconds < 1 for row in rows)
    assert len(rows) > len(told)  # kernels of TVM among them, which CUDA graphs would hide
    torch.testing.assert_close(with_graphs(x), before, rtol=0, atol=0)
    restored = deepcopy(with_graphs)
    torch.testing.assert_close(restored(x), before, rtol=1e-5, atol=1e-6)
