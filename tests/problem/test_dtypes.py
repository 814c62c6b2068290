"""The types that elements are stored in, and the rounding to bfloat16, which is tvmconv's own on a CPU."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest

import tvmconv
from tests.shared.network_graph import Graph
from tvmconv import ConvWorkload, autotvm
from tvmconv.cli.models.inputs import fill, read_inputs
from tvmconv.network import build
from tvmconv.network.graph.layers import TensorSpec
from tvmconv.problem.dtypes import DTYPES, FLOATS, NARROW, QUANTIZED, STORAGE_TYPES, is_floating
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.arrays import to_torch
from tvmconv.targets import has_rounding, resolve_target
from tvmconv.testing import check_result, random_operands

torch = pytest.importorskip("torch")
every_dtype = pytest.mark.parametrize("dtype", FLOATS)


@every_dtype
def test_rows_are_as_the_types_say(dtype: str) -> None:
    row, facts = STORAGE_TYPES[dtype], ml_dtypes.finfo(dtype)
    assert row.numpy.name == str(getattr(torch, dtype)).removeprefix("torch.") == dtype
    assert row.unit == facts.eps / 2
    assert row.itemsize == facts.bits // 8
    assert row.least >= float(facts.smallest_subnormal) / 2
    assert is_floating(dtype)
    assert is_floating(row.numpy)


@pytest.mark.parametrize("dtype", [dtype for dtype in STORAGE_TYPES if dtype not in FLOATS])
def test_rows_of_integers_are_as_the_types_say(dtype: str) -> None:
    row, facts = STORAGE_TYPES[dtype], np.iinfo(dtype)
    assert row.numpy.name == str(getattr(torch, dtype)).removeprefix("torch.") == dtype
    assert (row.bounds, row.itemsize) == ((facts.min, facts.max), facts.bits // 8)
    assert (row.sums, row.weight) == ("int32", "int8")
    assert not is_floating(dtype)


def test_types_of_operands() -> None:
    assert (("float32", *NARROW), ("int8", "uint8"), (*FLOATS, *QUANTIZED)) == (FLOATS, QUANTIZED, DTYPES)
    assert [STORAGE_TYPES[dtype].weight for dtype in FLOATS] == [*FLOATS]


def test_others_are_not_floating() -> None:
    assert [is_floating(dtype) for dtype in ("float64", "int8", "bool")] == [True, False, False]


EDGES = (
    *(0x3F808000, 0x3F818000, 0x3F807FFF, 0x3F808001),  # ties between even and odd, and their neighbours
    *(0x00008000, 0x00018000, 0x80007FFF, 0x00000000, 0x80000000),  # below the normal numbers, and zeros
    *(0x7F7F7FFF, 0x7F7F8000, 0x7F7FFFFF, 0x7F800000, 0xFF800000),  # the largest number, and infinities
    *(0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFC00000),  # NaN
)


@pytest.mark.parametrize("side", [2, 16])
@pytest.mark.parametrize("mcpu", ["native", "haswell", "x86-64"])
@pytest.mark.parametrize("activation", ["none", "leaky_relu"])
def test_bfloat16_is_rounded_to_nearest_even(activation: str, mcpu: str, side: int) -> None:
    """Check that a kernel stores sums as NumPy stores them, and NaN with any bits as a NaN.

    The instruction that some CPUs have for vectors of 16, as in planes of 16x16, takes denormal numbers for zeros.
    """
    random = np.random.default_rng(0).integers(0, 2**32, 64 * 64 - len(EDGES), np.uint32)
    shift = np.concatenate([np.array(EDGES, np.uint32), random]).view(np.float32)
    x, w = np.zeros((1, 1, side, side), "bfloat16"), np.zeros((len(shift), 1, 1, 1), "bfloat16")
    target = "llvm" if mcpu == "native" else {"kind": "llvm", "mcpu": mcpu}
    y = tvmconv.conv2d(x, w, shift=shift, activation=None if activation == "none" else activation, target=target)
    with np.errstate(all="ignore"):
        slope = np.float32(0.01 if activation == "leaky_relu" else 1)
        sums = np.where(shift == 0, np.float32(0), shift)  # -0 + 0 is 0
        sums = np.where(sums < 0, sums * slope, sums)
        if side == 16 and has_rounding(resolve_target(target)):
            sums = np.where(np.abs(sums) < np.finfo("float32").tiny, sums * np.float32(0), sums)
        expected = sums.astype("bfloat16")
    expected = np.broadcast_to(expected[None, :, None, None], y.shape)
    np.testing.assert_array_equal(np.isnan(y), np.isnan(expected))
    number = ~np.isnan(expected)
    np.testing.assert_array_equal(y[number].view(np.uint16), expected[number].view(np.uint16))


@pytest.mark.parametrize("mcpu", ["native", "haswell"])
def test_what_a_rounding_reads_of_bfloat16_is_computed_in_float32(mcpu: str) -> None:
    """Choices, constants, sums and comparisons of bfloat16 that a sigmoid of float32 reads are in its loop."""
    graph = Graph((2, 4, 6), "bfloat16")
    x = np.linspace(-4, 4, 48).reshape(2, 4, 6).astype("bfloat16")
    read = {
        graph.node("Concat", "x", "x", axis=1): np.tile(x, (1, 2, 1)),
        graph.node("Pad", "x", graph.constant([0, 1, 1, 0, 1, 1], "int64")): np.pad(x, [(0, 0), (1, 1), (1, 1)]),
        graph.node("Where", graph.node("Less", "x", graph.constant([0.0])), graph.constant([0.5]), "x"): np.where(
            x < 0, 0.5, x
        ),
        graph.node("Add", "x", "x"): x + x,
        graph.node("Neg", "x"): -x,
        graph.node("Floor", "x"): np.floor(x),
    }
    wide = (graph.node("Cast", each, to=onnx.TensorProto.FLOAT) for each in read)
    halves = [graph.node("Cast", graph.node("Sigmoid", each), to=onnx.TensorProto.BFLOAT16) for each in wide]
    network = build(graph.model(*halves), "llvm" if mcpu == "native" else {"kind": "llvm", "mcpu": mcpu})
    for y, each in zip(network(x), read.values(), strict=True):
        expected = 1 / (1 + np.exp(-each.astype("float64")))
        np.testing.assert_allclose(y.astype("float64"), expected, rtol=STORAGE_TYPES["bfloat16"].unit * 1.01)


def test_truncation_is_caught() -> None:
    """Check that a kernel which cuts the last bits off fails where one that rounds passes."""
    workload = ConvWorkload.depthwise((1, 4, 12, 12), (4, 1, 3, 3), dtype="bfloat16")
    operands = random_operands(workload)
    x, w = operands["x"], operands["w"]
    check_result(workload, operands, tvmconv.depthwise(x, w))
    exact = tvmconv.depthwise(x.astype("float32"), w.astype("float32"))
    truncated = (exact.view(np.uint32) >> 16).astype(np.uint16).view("bfloat16")
    with pytest.raises(AssertionError, match="elements are wrong"):
        check_result(workload, operands, truncated)


LAYERS = {
    "depthwise": ConvWorkload.depthwise((1, 16, 28, 32), (16, 1, 3, 3), activation="relu", dtype="bfloat16"),
    "direct": ConvWorkload.conv2d((1, 16, 28, 28), (32, 16, 3, 3), residual=True, dtype="bfloat16"),
    "im2win": ConvWorkload.conv2d((1, 16, 28, 28), (32, 16, 3, 3), dtype="bfloat16"),
    "pointwise": ConvWorkload.conv2d((1, 16, 16, 16), (32, 16, 1, 1), shift=True, dtype="bfloat16"),
}


@pytest.mark.parametrize(("mcpu", "register"), [("znver4", "zmm"), ("haswell", "ymm")])
@pytest.mark.parametrize("algorithm", LAYERS)
def test_conversions_are_vectors(algorithm: str, mcpu: str, register: str) -> None:
    """Check that conversions are shifts by half a word, or to bfloat16 an instruction that takes 16 elements.

    From bfloat16 they are of the widest vectors, to it of as many elements as are stored: direct and im2win store rows.
    """
    target = {"kind": "llvm", "mcpu": mcpu}
    assembly = tvmconv.compile(LAYERS[algorithm], target, algorithm=algorithm).source("asm")
    assert re.search(rf"vpslld\s+\$16, .*%{register}", assembly)
    by_instruction = mcpu == "znver4" and algorithm in ("depthwise", "pointwise")
    rounded = r"vcvtneps2bf16\s+.*%zmm" if by_instruction else r"vpsrld\s+\$16, .*%[xyz]mm"
    assert re.search(rounded, assembly)


def test_gpus_older_than_the_type_are_refused() -> None:
    workload, old = LAYERS["direct"], {"kind": "cuda", "arch": "sm_75"}
    weight = np.ones(workload.w_shape, "float32")
    calls: list[Any] = [
        lambda: tvmconv.compile(workload, old),
        lambda: tvmconv.sparse_conv2d(weight).operator(workload.x_shape, "bfloat16", old),
        lambda: autotvm.create(workload, old).template,
    ]
    for call in calls:
        with pytest.raises(InvalidArgumentError, match="target is 'sm_75'; expected sm_80 or later, for bfloat16"):
            call()
    tvmconv.compile(ConvWorkload.conv2d((1, 4, 6, 6), (4, 4, 3, 3), dtype="float16"), old)


@pytest.mark.parametrize("dtype", NARROW)
def test_large_results_of_torch(dtype: str) -> None:
    """Check results that are in memory of NumPy's."""
    workload = ConvWorkload.depthwise((1, 64, 224, 224), (64, 1, 1, 1), dtype=dtype)
    operands = random_operands(workload)
    y = tvmconv.depthwise(to_torch(operands["x"]), to_torch(operands["w"]))
    assert (y.dtype, y.shape) == (getattr(torch, dtype), workload.output_shape)
    assert torch.equal(y, to_torch(operands["x"]) * to_torch(operands["w"]).view(1, 64, 1, 1))


@every_dtype
def test_inputs_of_the_cli(dtype: str, tmp_path: Path) -> None:
    """Check that they are filled with random numbers, and read from what NumPy writes."""
    spec = TensorSpec("x", (4, 5), dtype)
    filled = fill(spec, "random", np.random.default_rng(0))
    assert filled.dtype == dtype
    assert len(np.unique(filled.astype("float64"))) > 10
    np.savez(tmp_path / "x.npz", x=filled)
    read = read_inputs(tmp_path / "x.npz", [spec])["x"]
    assert read.dtype == dtype
    assert np.array_equal(read, filled)


def test_bfloat16_is_floating_before_numpy_knows_it() -> None:
    code = "import numpy; from tvmconv.problem.dtypes import is_floating; print(is_floating('bfloat16'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True"]
