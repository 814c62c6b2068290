"""`tvmconv bench suite --sparsity`: weights, peers and code."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.bench import suite
from tvmconv.bench.peers import default_peers, known_peers
from tvmconv.bench.peers.ours import Sparse
from tvmconv.checking import suites
from tvmconv.checking.pruning import pruned
from tvmconv.lowering import kernels
from tvmconv.targets import backend_of, resolve_target
from tvmconv.testing import random_operands

pytest.importorskip("torch")

TINY = {
    "sparse-paper": {
        "batch": {"cuda": 64, "llvm": 2},
        "padding": 1,
        "stride": 1,
        "columns": ["name", "in_channels", "height", "width", "kernel", "out_channels"],
        "rows": [["even", 4, 8, 8, 3, 6], ["odd", 3, 6, 8, 3, 4]],
    }
}


@pytest.fixture
def tiny(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "_read", lambda: TINY)


def test_zeros() -> None:
    weight = random_operands(ConvWorkload.conv2d((1, 8, 8, 8), (8, 8, 3, 3)))["w"]
    more, fewer = pruned(weight, 0.9), pruned(weight, 0.5)
    assert np.count_nonzero(more) == weight.size - round(0.9 * weight.size)
    assert np.count_nonzero(fewer) == weight.size // 2
    assert np.array_equal(more, np.where(more == 0, 0, fewer))
    assert np.array_equal(pruned(weight, 0.0), weight)


WORKLOADS = [
    ConvWorkload.conv2d((2, 4, 9, 8), (6, 4, 3, 3), padding=(0, 1, 2, 1), dilation=(1, 2)),
    ConvWorkload.conv2d((1, 4, 9, 8), (6, 4, 3, 3), stride=2, scale=True, shift=True, residual=True, activation="relu"),
]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_peers_compute_the_convolution(workload: ConvWorkload) -> None:
    target, arrays = resolve_target("llvm"), random_operands(workload)
    arrays["w"] = pruned(arrays["w"], 0.7)
    sets, check = [suite._tensors(arrays, "cpu")], suite._Check(arrays, "cpu")
    took_part = 0
    for peer in (Sparse(), *(known_peers()[name] for name in default_peers(sparse=True))):
        if peer.obstacle(workload, target) is None:
            (call,) = peer.prepare(workload, target, sets)
            check(peer, workload, call)
            took_part += 1
    assert took_part == (6 if workload.epilogue.scale else 7)


def test_suite(tiny: None) -> None:
    options = ["bench", "suite", "sparse-paper", "--sparsity", 0.9, "--rounds", 1, "--peers", "pytorch,tvmconv-dense"]
    row, _ = tvmconv_json(*options)["rows"]
    assert row["workload"].endswith("padding 1,1,1,1, 90% zeros")
    assert list(row["times"]) == ["tvmconv", "tvmconv-dense", "pytorch", "copy", "copy-kernel"]
    assert row["selection"] == "default configuration for 10.2% non-zeros"
    assert tvmconv(*options, "--precision", "strict").exit_code == 2


def test_dense_suites_have_no_sparse_peers(tiny: None) -> None:
    assert not any(peer.name == "im2col-spmm" for peer in suite.choose_peers(None, suite.How(1)))
    assert {"im2col-spmm", "im2col-gemm", "tvmconv-dense", "pytorch-tf32", "onnxruntime"} < set(
        default_peers(sparse=True)
    )
    assert "tvm" not in default_peers(sparse=True)


def test_weight_that_is_too_much_code(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of zeros that leaves too much to compile makes a row without a kernel; peers are measured."""
    monkeypatch.setattr(kernels, "backend_of", lambda target: replace(backend_of(target), max_products=200))
    options = ["bench", "suite", "sparse-paper", "--rounds", 1, "--peers", "pytorch", "--sparsity"]
    dense, sparse = (tvmconv_json(*options, share)["rows"][0] for share in (0, 0.9))
    assert "multiply-adds of a thread; at most 200 are compiled in" in dense["skipped"]["tvmconv"]
    assert set(dense["times"]) == {"pytorch", "copy", "copy-kernel"}
    assert "tvmconv" in sparse["times"]
