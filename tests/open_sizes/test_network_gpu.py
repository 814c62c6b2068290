"""Networks with open sizes on a real GPU: their memory, and a CUDA graph for each size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm

import tvmconv
from tests.open_sizes.batches import images, model
from tests.shared.torch_modules import called_in_a_process, torch
from tvmconv.network.runtime import session as sessions
from tvmconv.network.runtime.session import IN_GRAPHS, IN_MEMORY
from tvmconv.problem.errors import InvalidArgumentError

BATCHES = (3, 3, 3, 1, 1, 1, 3, 9, 3, 3, 9, 9, 1, 65, 65, 65, 9, 1)
"""Batches that are launched, captured and replayed, in memory that grows and in memory that is large enough."""


def built() -> tvmconv.Network:
    return tvmconv.build(model("n"), "cuda")


@pytest.fixture(scope="module")
def network() -> tvmconv.Network:
    return built()


@pytest.fixture(scope="module")
def reference() -> tvmconv.Network:
    return tvmconv.build(model("n"), "llvm")


def check(reference: tvmconv.Network, x: np.ndarray, y: np.ndarray) -> None:
    expected = reference(x)
    assert np.abs(y - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("most", [64, 2], ids=["all", "two"])
def test_every_call_has_its_own_output(
    network: tvmconv.Network, reference: tvmconv.Network, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results are compared at the end, so that no call may have overwritten that of another."""
    monkeypatch.setattr(sessions, "MAX_SIZES", most)
    network.release_memory()
    inputs = [np.random.default_rng(index).permuted(images(batch), axis=1) for index, batch in enumerate(BATCHES)]
    for x, y in zip(inputs, [network(torch.from_numpy(x).cuda()) for x in inputs], strict=True):
        check(reference, x, y.cpu().numpy())
    assert 0 < len(network._session._in_graphs) <= most


def test_graphs_compute_what_launches_do(network: tvmconv.Network) -> None:
    """The first call of a batch is launched, the second captures, the third replays."""
    network.release_memory()
    for batch in (8, 5, 2):
        x = torch.from_numpy(images(batch)).cuda()
        launched = network(x)
        for _ in range(3):
            assert torch.equal(network(x), launched)
    assert len(network._session._in_graphs) == 3
    assert {IN_GRAPHS, IN_MEMORY} <= network._session._functions


def test_without_graphs(reference: tvmconv.Network) -> None:
    with tvm.transform.PassContext(config={"relax.backend.use_cuda_graph": False}):
        network = built()
    for batch in BATCHES:
        check(reference, images(batch), network(images(batch)))
    assert not network._session._in_graphs


def test_current_stream(network: tvmconv.Network, reference: tvmconv.Network) -> None:
    """The launches of a capture and of replays wait for earlier work on the stream."""
    network.release_memory()
    stream = torch.cuda.Stream()
    for seed in range(4):
        x = np.random.default_rng(seed).permuted(images(3), axis=1)
        source, later = torch.from_numpy(x).cuda(), torch.zeros(x.shape, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(50_000_000)
            later.copy_(source)
            y = network(later)
            later.zero_()
        stream.synchronize()
        check(reference, x, y.cpu().numpy())


def test_a_graph_of_the_caller_is_refused(network: tvmconv.Network) -> None:
    x = torch.from_numpy(images(3)).cuda()
    network(x)
    torch.cuda.synchronize()
    with (
        pytest.raises(InvalidArgumentError, match="one whose memory may move"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        network(x)


def test_memory_is_given_back_when_asked(reference: tvmconv.Network) -> None:
    """The largest call decides how much there is, after it the smallest leaves it there, and so do graphs."""
    network = built()
    network(images(1))
    torch.cuda.synchronize()
    free = torch.cuda.mem_get_info()[0]
    largest = 20_000  # 24 channels of 8x8 in float32, twice: 246 MB
    x = torch.from_numpy(images(largest)).cuda()
    for _ in range(3):
        network(x)
    network(images(1))
    del x
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    kept = torch.cuda.mem_get_info()[0]
    assert free - kept > 200e6
    network.release_memory()
    assert torch.cuda.mem_get_info()[0] - kept > 200e6
    check(reference, images(3), network(images(3)))


def test_a_process_that_ends_with_a_network(
    network: tvmconv.Network, reference: tvmconv.Network, tmp_path: Path
) -> None:
    """A network that was loaded and run with its graphs may exist when the process ends."""
    for y in called_in_a_process(network, images(3), tmp_path):
        check(reference, images(3), y)
