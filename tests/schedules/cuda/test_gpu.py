"""The CUDA schedules and the network build on a real GPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from itertools import islice
from math import prod
from pathlib import Path

import msgspec
import numpy as np
import pytest

import tvmconv
from tests.shared.scripts import rows_of, script
from tvmconv import ConvWorkload
from tvmconv.dispatch import algorithms_for, template_for
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.arrays import to_numpy, to_torch
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, DEPTHWISE, Case, check_result, conformance, random_configs, random_operands
from tvmconv.testing.conformance import How
from tvmconv.testing.trials import Trial

torch = pytest.importorskip("torch")
by_id = pytest.mark.parametrize("case", [*DEPTHWISE, *CONV2D], ids=lambda case: case.id)


def on_gpu(arrays: dict[str, np.ndarray]) -> list[torch.Tensor]:
    return [to_torch(array).cuda() for name, array in arrays.items() if name != "output"]


def algorithms(case: Case) -> list[str]:
    return list(algorithms_for(Problem(case.workload), resolve_target({"kind": "cuda", "arch": "sm_90"})))


@pytest.mark.parametrize(
    ("case", "algorithm"),
    [(case, algorithm) for case in (*DEPTHWISE, *CONV2D) for algorithm in algorithms(case)],
    ids=lambda given: given if isinstance(given, str) else given.id,
)
def test_legal_configurations(case: Case, algorithm: str) -> None:
    """Each algorithm runs in its default configuration and in random ones."""
    target = resolve_target("cuda")
    operands = random_operands(case.workload)
    default = template_for(Problem(case.workload), target, algorithm).default_config(Problem(case.workload), target)
    for config in (default, *random_configs(case.workload, target, 3, algorithm)):
        operator = tvmconv.compile(case.workload, target, config)
        check_result(case.workload, operands, to_numpy(operator(*_with_vectors(case.workload, operands)).cpu()))


# Sparse kernels stage all that a tile reads, dilated or not.
SPARSE = [(case, 0.8) for case in (*DEPTHWISE, *CONV2D) if case.id != "dilated-past-shared-memory"]
SPARSE += [(Case("several-launches", ConvWorkload.conv2d((1, 64, 14, 14), (96, 64, 3, 3))), 0.5)]


@pytest.mark.parametrize(("case", "sparsity"), SPARSE, ids=[case.id for case, _ in SPARSE])
def test_sparse_configurations(case: Case, sparsity: float) -> None:
    """The default configuration and random ones are right for a weight with a share of zeros."""
    target = resolve_target("cuda")
    trial = Trial(case.workload, "sparse", None, operands=1, sparsity=sparsity)
    how = How(str(target))
    conformance.check(how, trial)
    for config in islice(conformance.configs(trial, target), 2):
        conformance.check(how, msgspec.structs.replace(trial, knobs=msgspec.to_builtins(config)))


def test_current_stream_is_used() -> None:
    """A kernel waits for earlier work on its stream: here, a long fill of its input."""
    x, w = torch.zeros(1, 64, 512, 512, device="cuda"), torch.ones(64, 1, 1, 1, device="cuda")
    tvmconv.depthwise(x, w)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        x.fill_(2)
        result = tvmconv.depthwise(x, w)
        x.fill_(3)
    stream.synchronize()
    assert bool((result == 2).all())


DENSE = ConvWorkload.conv2d((8, 64, 56, 56), (64, 64, 3, 3), padding=1)


def dense_operands() -> tuple[tvmconv.Operator, list[tuple[torch.Tensor, torch.Tensor]], list[torch.Tensor]]:
    """Return an operator with a workspace, two pairs of x and w, and its result for each pair alone."""
    target = resolve_target("cuda")
    template = template_for(Problem(DENSE), target, "direct")
    config = replace(template.default_config(Problem(DENSE), target), packed=True, split_k=2)
    operator = tvmconv.compile(DENSE, target, config)
    assert operator.workspace_bytes >= 4 * 64 * 64 * 9 + 2 * 4 * prod(DENSE.output_shape)
    pairs = [(torch.randn(DENSE.x_shape, device="cuda"), torch.randn(DENSE.w_shape, device="cuda")) for _ in range(2)]
    results = [operator(*pair) for pair in pairs]
    torch.cuda.synchronize()
    return operator, pairs, results


def test_streams_of_a_thread_do_not_share_a_workspace() -> None:
    operator, pairs, expected = dense_operands()
    streams = [torch.cuda.Stream() for _ in pairs]
    computed = []
    for _ in range(50):
        for stream, pair, result in zip(streams, pairs, expected, strict=True):
            with torch.cuda.stream(stream):
                computed.append((operator(*pair), result))
    torch.cuda.synchronize()
    assert all(torch.equal(got, result) for got, result in computed)


def test_a_captured_graph_has_a_workspace_of_its_own() -> None:
    operator, pairs, expected = dense_operands()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph):
        result = operator(*pairs[0])
    torch.cuda.empty_cache()
    full = torch.full((2**28,), torch.nan, device="cuda")  # what the graph has not kept is overwritten
    for _ in range(50):
        graph.replay()
        with torch.cuda.stream(stream):
            other = operator(*pairs[1])
    torch.cuda.synchronize()
    assert bool(full.isnan().all())
    assert torch.equal(result, expected[0])
    assert torch.equal(other, expected[1])


def test_out() -> None:
    """`out` is written on the current stream, in a graph too, with a workspace."""
    operator, pairs, expected = dense_operands()
    out, stream = torch.full_like(expected[0], torch.nan), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        out.fill_(2)
        assert operator(*pairs[0], out=out) is out
    stream.synchronize()
    assert torch.equal(out, expected[0])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        operator(*pairs[1], out=out)
    out.fill_(torch.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(out, expected[1])
    with pytest.raises(
        InvalidArgumentError, match="out is 'memory of x'; expected an array that shares no memory with an operand"
    ):
        operator(*pairs[0], out=pairs[0][0])
    with pytest.raises(InvalidArgumentError, match="out is 'cpu:0'; expected an array on cuda:0"):
        operator(*pairs[0], out=out.cpu())


def test_what_a_call_costs() -> None:
    with script("overhead") as overhead:
        assert len(rows_of(overhead, target="cuda", rounds=1)) == 7


def test_memory_of_a_call_is_what_it_says() -> None:
    operator, pairs, _ = dense_operands()
    operator(*pairs[0])
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    output = operator(*pairs[0])
    torch.cuda.synchronize()
    requested = torch.cuda.memory_stats()
    taken = requested["requested_bytes.all.peak"] - requested["requested_bytes.all.current"]
    assert taken == operator.workspace_bytes
    del output


def test_slices_that_no_vector_is_aligned_to() -> None:
    workload = ConvWorkload.depthwise((1, 4, 16, 16), (4, 1, 3, 3))
    operands = random_operands(workload)
    buffer = torch.empty(operands["x"].size + 1, device="cuda")
    x = buffer[1:].view(workload.x_shape)
    x.copy_(torch.from_numpy(operands["x"]))
    aligned, w = on_gpu(operands)
    for image in (aligned, x, aligned):
        check_result(workload, operands, tvmconv.depthwise(image, w).cpu().numpy())
    with pytest.raises(InvalidArgumentError, match="out is 'a tensor with strides .*on a GPU aligned to 16 bytes"):
        tvmconv.depthwise(aligned, w, out=x)


def test_mixed_devices_are_refused() -> None:
    x, w = torch.ones(1, 2, 8, 8), torch.ones(2, 1, 3, 3)
    with pytest.raises(InvalidArgumentError, match="w is .* expected an array on cuda"):
        tvmconv.depthwise(x.cuda(), w)
    with pytest.raises(InvalidArgumentError, match="x is .* expected an array on cuda"):
        tvmconv.depthwise(x, w, target="cuda")


def test_nan_and_infinity_pass_through_the_epilogue() -> None:
    """They come out as on the CPU, in spite of the compiler's fast math."""
    workload = ConvWorkload.depthwise((1, 1, 4, 40), (1, 1, 1, 1), activation="relu6")
    operands = random_operands(workload)
    operands["x"][0, 0, 0, :3] = np.nan, np.inf, -np.inf
    check_result(workload, operands, tvmconv.compile(workload, "cuda")(*on_gpu(operands)).cpu().numpy())


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    """Ties, the largest numbers, and NaN with any bits: of a float32 vector that is added to zeros."""
    bits = [0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001, 0x7F7F8000, 0x7F7FFFFF, 0x7FFFFFFF, 0x7F800001, 0xFF800000]
    shift = np.array(bits, np.uint32).view(np.float32)
    x, w = (torch.zeros(len(bits), 1, dtype=torch.bfloat16, device="cuda") for _ in "xw")
    y = tvmconv.conv2d(x[:1, :, None, None], w[..., None, None], shift=torch.from_numpy(shift).cuda())
    expected = torch.from_numpy(shift).bfloat16()
    assert torch.equal(y.ravel().cpu().nan_to_num(nan=1.5), expected.nan_to_num(nan=1.5))


def test_saved_operator(tmp_path: Path) -> None:
    workload = ConvWorkload.depthwise((2, 8, 14, 14), (8, 1, 3, 3), activation="relu")
    operands = random_operands(workload)
    tvmconv.compile(workload, "cuda").save(tmp_path / "depthwise.so")
    code = (
        "import sys, torch, tvmconv, tvmconv.targets.cuda as cuda;"
        "x, w = (torch.load(path).cuda() for path in sys.argv[2:4]);"
        "y = tvmconv.load(sys.argv[1])(x, w);"
        "torch.save(y.cpu(), sys.argv[4])"
    )
    paths = [str(tmp_path / name) for name in ("depthwise.so", "x.pt", "w.pt", "y.pt")]
    for path, array in zip(paths[1:3], on_gpu(operands), strict=True):
        torch.save(array.cpu(), path)
    subprocess.run([sys.executable, "-c", code, *paths], check=True)
    check_result(workload, operands, torch.load(paths[3]).numpy())


def test_network_on_a_gpu() -> None:
    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 1),
        torch.nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU6(),
        torch.nn.Conv2d(16, 32, 3, stride=2, groups=16),
    ).eval()
    x = torch.randn(2, 3, 20, 21)
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda")
    first, *others = (layer.kernel for layer in network.layers)
    assert first in ("tvmconv cuda/direct", "tvmconv cuda/tensor")
    assert others == ["tvmconv cuda/depthwise"] * 2
    with torch.no_grad():
        expected = module.double()(x.double())
    assert (network(x.cuda()).cpu() - expected).abs().max() < 1e-5
    from_host = network(x.numpy())
    assert isinstance(from_host, np.ndarray)
    assert np.abs(from_host - expected.numpy()).max() < 1e-5


def test_grouped_convolution_with_batch_norm_and_relu() -> None:
    """Its weight is packed when the network is built; results are the same in each call."""
    module = torch.nn.Sequential(
        torch.nn.Conv2d(272, 272, 1, groups=4, bias=False), torch.nn.BatchNorm2d(272), torch.nn.ReLU()
    ).eval()
    x = torch.randn(1, 272, 7, 7)
    network = tvmconv.build(tvmconv.import_model(module, (x,)), "cuda")
    assert [layer.kernel for layer in network.layers] == ["tvmconv cuda/direct"]
    with torch.no_grad():
        expected = module.double()(x.double())
    for _ in range(5):
        assert (network(x.cuda()).cpu() - expected).abs().max() < 1e-5


def _with_vectors(workload: ConvWorkload, operands: dict[str, np.ndarray]) -> list[torch.Tensor | None]:
    """Return the operands of a call in its order, None for those that the epilogue does not have."""
    names = ("x", "w", "scale", "shift", "residual")
    return [to_torch(operands[name]).cuda() if name in operands else None for name in names]
