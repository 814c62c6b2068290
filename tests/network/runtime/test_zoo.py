"""Two dozen whole networks: right on the CPU, and compiled for CUDA, where they are right as serial code.

They take some minutes, so they run when they are asked for: `pytest -m release tests/network/runtime/test_zoo.py`.
"""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxruntime")

import tvmconv
from tests.network.runtime.zoo import NETWORKS, Example, have_kernels, serial_network
from tvmconv.targets import cuda, has_gpu

pytestmark = pytest.mark.release

CUDA = {"kind": "cuda", "arch": "sm_90"}
SPILLED = 40
"""The bytes of a thread that a kernel may spill: ptxas spills 40 of one of inception_v3, whose block of 32 threads has
room for more than its 96 registers."""


@pytest.fixture(scope="module", params=NETWORKS)
def example(request: pytest.FixtureRequest) -> Example:
    return NETWORKS[request.param]()


def test_on_the_cpu(example: Example) -> None:
    network = tvmconv.build(example.model)
    assert have_kernels(network.layers)
    example.check(network(example.x))


def test_cuda_kernels_as_serial_code(example: Example) -> None:
    example.check(serial_network(example.model, CUDA)(example.x))


def test_cuda_source_compiles(example: Example) -> None:
    network = tvmconv.build(example.model, CUDA)
    assert have_kernels(network.layers)
    sources = cuda.sources(network._executable.mod)
    kernels = [kernel for source in sources for kernel in cuda.kernel_resources(source, CUDA["arch"])]
    ours = [kernel for kernel in kernels if kernel.name.startswith("tvmconv")]
    assert ours
    assert not [kernel for kernel in ours if max(kernel.spill_store_bytes, kernel.spill_load_bytes) > SPILLED]


@pytest.mark.skipif(not has_gpu(), reason="there is no GPU here")
def test_on_a_gpu(example: Example) -> None:
    network = tvmconv.build(example.model, "cuda")
    for _ in range(3):
        example.check(network(example.x))
