"""Networks that are called in several streams and threads of a real GPU: nobody's numbers get into another's."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import tvm

import tvmconv

torch = pytest.importorskip("torch")

SHAPE = (1, 16, 40, 40)
CALLS = 40
LONG = 50_000_000
"""The clocks of a stream that sleeps for about 25 ms."""


def module() -> Any:
    torch.manual_seed(5)
    layers = [each for _ in range(12) for each in (torch.nn.Conv2d(16, 16, 3, padding=1), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers).eval()


@pytest.fixture(scope="module", params=["graphs", "launches", "open"])
def networks(request: pytest.FixtureRequest) -> list[tvmconv.Network]:
    """Return two networks, with CUDA graphs, without, or with an open batch."""
    batch = {0: torch.export.Dim("n", min=1, max=8)} if request.param == "open" else {}
    example = torch.zeros(2 if batch else 1, *SHAPE[1:])
    program = torch.export.export(module(), (example,), dynamic_shapes=(batch,) if batch else None)
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": request.param != "launches"}):
        return [tvmconv.build(tvmconv.import_model(program), "cuda") for _ in range(2)]


def images(count: int) -> list[Any]:
    return [torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).cuda() for seed in range(count)]


def check(x: Any, y: Any) -> None:
    with torch.no_grad():
        expected = module().cuda().double()(x.double())
    assert (y - expected).abs().max() <= 1e-5 * expected.abs().max()


@pytest.mark.parametrize("count", [1, 2], ids=["one network", "two networks"])
def test_streams_in_turns(networks: list[tvmconv.Network], count: int) -> None:
    xs, streams = images(2), [torch.cuda.Stream() for _ in range(2)]
    results: list[list[Any]] = [[], []]
    torch.cuda.synchronize()
    for _ in range(CALLS):
        for index, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[index].append(networks[index % count](xs[index]))
    torch.cuda.synchronize()
    for x, ys in zip(xs, results, strict=True):
        check(x, ys[0])
        assert all(torch.equal(y, ys[0]) for y in ys)


@pytest.mark.parametrize("count", [1, 2], ids=["one network", "two networks"])
def test_memory_that_another_stream_is_still_to_use(networks: list[tvmconv.Network], count: int) -> None:
    """An output that nobody holds is given to the next call, which may not write it before the first has."""
    (x, other), (first, second) = images(2), [torch.cuda.Stream() for _ in range(2)]
    for network in networks:
        network(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        torch.cuda._sleep(LONG)
        doubled = networks[0](x) * 2
    with torch.cuda.stream(second):
        y = networks[count - 1](other)
    torch.cuda.synchronize()
    check(other, y)
    check(x, doubled / 2)


def test_threads(networks: list[tvmconv.Network]) -> None:
    xs = images(4)
    torch.cuda.synchronize()
    results: list[list[Any]] = [[] for _ in xs]

    def work(index: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(CALLS):
                results[index].append(networks[index % 2](xs[index]))
            torch.cuda.current_stream().synchronize()

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    for x, ys in zip(xs, results, strict=True):
        assert len(ys) == CALLS
        check(x, ys[0])
        assert all(torch.equal(y, ys[0]) for y in ys)


def test_arrays_of_the_host_behind_a_stream(networks: list[tvmconv.Network]) -> None:
    """A call with NumPy's arrays waits for the last one in a stream of torch."""
    x, other = images(2)
    networks[0](x)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda._sleep(LONG)
        y = networks[0](x)
    result = torch.from_numpy(networks[0](other.cpu().numpy())).cuda()
    torch.cuda.synchronize()
    check(other, result)
    check(x, y)
