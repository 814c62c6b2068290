"""The peers of `tvmconv bench suite`: each computes the convolution, or says what is in its way."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest

from tvmconv import ConvWorkload, Epilogue
from tvmconv.bench import suite
from tvmconv.bench.peers import LIMITS, OURS, default_peers, known_peers
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import operators
from tvmconv.targets import resolve_target
from tvmconv.testing import random_operands

torch = pytest.importorskip("torch")
depthwise, conv2d = ConvWorkload.depthwise, ConvWorkload.conv2d

DENSE = conv2d((1, 6, 9, 11), (8, 6, 3, 3), shift=True, residual=True, activation="relu")
WORKLOADS = [
    depthwise((2, 4, 9, 11), (4, 2, 3, 3), padding=(0, 1, 2, 1), scale=True, shift=True, activation="relu"),
    depthwise((1, 4, 12, 12), (4, 1, 3, 3), stride=2, dilation=2, scale=True, activation="relu6"),
    depthwise((1, 4, 12, 12), (4, 1, 3, 3), stride=2, dtype="float16", shift=True),
    conv2d((2, 6, 9, 11), (8, 3, 3, 2), groups=2, padding=(0, 1, 2, 1)),
    DENSE,
    conv2d((1, 6, 9, 11), (8, 6, 3, 3), dtype="bfloat16", shift=True),
    conv2d((2, 6, 9, 11), (8, 6, 1, 1), scale=True, shift=True, residual=True, activation="relu"),
    conv2d((5, 24, 1, 1), (8, 24, 1, 1), shift=True),
]
INTEGERS = conv2d((40, 24, 1, 1), (8, 24, 1, 1), dtype="int8")
ALGORITHMS = {"tvmconv-direct", "tvmconv-im2win"}
PRODUCTS = {WORKLOADS[-2]: {"gemm", "gemm-channels-last"}, WORKLOADS[-1]: {"gemm-channels-last"}}
"""The workloads that a product of matrices is a peer for."""
OTHERS = ["pytorch", "pytorch-channels-last", "gemm", "gemm-channels-last", "im2col-gemm", "onnxruntime", "tvm"]
OTHERS += ["tvmconv-plain", "tvmconv"]
GEMM_LAST = known_peers()["gemm-channels-last"]
ON_CPU = [*sorted(ALGORITHMS), *OTHERS]


@pytest.mark.parametrize("workload", WORKLOADS, ids=str)
def test_peers_compute_the_convolution(workload: ConvWorkload) -> None:
    target, arrays = resolve_target("llvm"), random_operands(workload)
    sets, check = [suite._tensors(arrays, "cpu") for _ in range(2)], suite._Check(arrays, "cpu")
    took_part = set()
    for name in ON_CPU:
        peer = OURS if name == OURS.name else known_peers()[name]
        if peer.obstacle(workload, target) is None:
            took_part.add(name)
            calls = peer.prepare(workload, target, sets)
            assert len(calls) == 2
            for call in calls:
                check(peer, workload, call)
    absent = {"tvmconv-plain" if workload.epilogue == Epilogue() else "onnxruntime"}
    absent |= {"gemm", "gemm-channels-last"} - PRODUCTS.get(workload, set())
    assert took_part == set(ON_CPU) - absent - (ALGORITHMS if workload.is_depthwise else set())


@pytest.mark.parametrize("workload", WORKLOADS[-2:], ids=str)
def test_rows_of_channels_are_a_matrix(workload: ConvWorkload) -> None:
    """With any other strides `linear` takes each row for a matrix, and is some hundred times as slow on a GPU."""
    (call,) = GEMM_LAST.prepare(workload, resolve_target("llvm"), [suite._tensors(random_operands(workload), "cpu")])
    pixels, channels = workload.batch * prod(workload.output_size), workload.in_channels
    operands = {name: (tuple(each.shape), each.stride()) for name, each in call.keywords.items()}
    assert operands["x"] == ((pixels, channels), (channels, 1))
    assert operands["w"] == ((workload.out_channels, channels), (channels, 1))


def test_products_of_integers() -> None:
    target, cuda = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
    assert GEMM_LAST.obstacle(INTEGERS, target) is None
    arrays = random_operands(INTEGERS)
    (call,) = GEMM_LAST.prepare(INTEGERS, target, [suite._tensors(arrays, "cpu")])
    suite._Check(arrays, "cpu")(GEMM_LAST, INTEGERS, call)
    assert known_peers()["gemm-tf32"].obstacle(INTEGERS, cuda) == "for float32 on a GPU"
    others = {
        "to int32": [{"dtype": "uint8"}, {"out_dtype": "int8", "scale": True}],
        "17 rows": [{"x_shape": (16, 24, 1, 1)}],
        "zero point": [{"x_zero_point": 3}],
    }
    for words, changes in others.items():
        for change in changes:
            given = {"x_shape": (40, 24, 1, 1), "dtype": "int8", **change}
            workload = conv2d(given.pop("x_shape"), (8, 24, 1, 1), **given)
            assert words in (GEMM_LAST.obstacle(workload, cuda) or "")


def test_algorithms_of_tvmconv_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    used, compiled = [], operators.compile

    def recording(*arguments: Any) -> operators.Operator:
        used.append(compiled(*arguments))
        return used[-1]

    monkeypatch.setattr(operators, "compile", recording)
    peers, target = known_peers(), resolve_target("llvm")
    for name in ("tvmconv-direct", "tvmconv-im2win"):
        assert peers[name].obstacle(DENSE, target) is None
        peers[name].prepare(DENSE, target, [])
        why = f"{name.removeprefix('tvmconv-')} does not compute it on llvm: depthwise does"
        assert peers[name].obstacle(WORKLOADS[0], target) == why
    assert [operator.selection.name for operator in used] == ["cpu/direct", "cpu/im2win"]
    assert peers["tvmconv-depthwise"].obstacle(WORKLOADS[0], target) == "the only algorithm for it"
    cuda, pointwise = resolve_target({"kind": "cuda", "arch": "sm_90"}), ConvWorkload.conv2d((1, 4, 8, 8), (4, 4, 1, 1))
    assert peers["tvmconv-pointwise"].obstacle(pointwise, target) is None
    assert peers["tvmconv-pointwise"].obstacle(pointwise, cuda) == "by direct or im2win or tensor on cuda"


def test_compiled_pytorch() -> None:
    workload, target = WORKLOADS[0], resolve_target("llvm")
    peer, arrays = known_peers()["torch-compile"], random_operands(WORKLOADS[0])
    if reason := peer.obstacle(workload, target):
        pytest.skip(reason)
    (call,) = peer.prepare(workload, target, [suite._tensors(arrays, "cpu")])
    suite._Check(arrays, "cpu")(peer, workload, call)


def test_peers_for_gpus_and_the_slow_one() -> None:
    target, cuda = resolve_target("llvm"), resolve_target({"kind": "cuda", "arch": "sm_90"})
    plain = depthwise((1, 4, 9, 9), (4, 1, 3, 3))
    assert known_peers()["gemm-tf32"].obstacle(WORKLOADS[-1], target) == "for float32 on a GPU"
    assert known_peers()["gemm-tf32"].obstacle(WORKLOADS[-1], cuda) is None
    ours = known_peers()["tvmconv-channels-last"]
    assert ours.obstacle(plain, cuda) is None
    assert ours.obstacle(plain, target) == "for tensor cores, and depthwise convolutions on a GPU"
    for name in ("pytorch-tf32", "pytorch-fp16"):
        assert (
            known_peers()[name].obstacle(plain, target)
            == known_peers()[name].obstacle(WORKLOADS[2], cuda)
            == "for float32 on a GPU"
        )
        assert known_peers()[name].obstacle(plain, cuda) is None
        assert known_peers()[name].unit(plain) == 2**-10
    assert known_peers()["onnxruntime"].obstacle(plain, cuda) is not None
    assert "metaschedule" not in default_peers()
    with pytest.raises(InvalidArgumentError, match="peers is 'tensorflow'; expected some of tvmconv-plain"):
        suite.choose_peers(["pytorch", "tensorflow"], suite.How(1))


def test_peers_for_integers() -> None:
    """Only tvmconv and the copies are asked for convolutions of integers."""
    peers = {OURS.name: OURS, **known_peers(), **{peer.name: peer for peer in LIMITS}}
    asked = {name for name, peer in peers.items() if peer.takes_integers}
    assert asked >= {"tvmconv", "tvmconv-plain", "tvmconv-tensor", "copy", "copy-kernel"}
    assert not asked & {"pytorch", "im2col-gemm", "onnxruntime", "tvm", "metaschedule"}
