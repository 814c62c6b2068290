"""Functions of single bytes as tables, which vectors look up: every byte, sizes of all kinds, and each instruction."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import tvmconv
from tests.shared.quantized_graph import Quantized, onnxruntimes
from tvmconv.network.passes.quantized import tables as quantized_tables
from tvmconv.targets import LookupInstruction, lookup_instruction, resolve_target
from tvmconv.targets.instructions import LOOKUP_INSTRUCTIONS

pytest.importorskip("onnxruntime")

CPUS = ("icelake-server", "skylake-avx512", "haswell")
"""A CPU for each row of `LOOKUP_INSTRUCTIONS`."""

CASES = (
    ((1, 1, 1, 300), "uint8", "uint8"),
    ((2, 3, 5, 7), "int8", "uint8"),
    ((1, 9, 32, 64), "uint8", "int8"),
)
"""Shapes with all bytes, with fewer than a vector has behind the last whole one, and of more than one task; types."""


def instructions_here() -> list[LookupInstruction | None]:
    """Return the rows whose features this machine has, and None, for none of them."""
    from tvm.target import codegen

    here = resolve_target("llvm")
    has = [all(codegen.target_has_features(each, here) for each in row.features) for row in LOOKUP_INSTRUCTIONS]
    return [*(row for row, is_here in zip(LOOKUP_INSTRUCTIONS, has, strict=True) if is_here), None]


def sigmoid(shape: tuple[int, ...], dtype: str, out_dtype: str) -> onnx.ModelProto:
    """Return a model that takes a sigmoid of bytes."""
    graph = Quantized(shape)
    zero_point = 128 if dtype == "uint8" else 0
    return graph.model(
        graph.rounded(graph.node("Sigmoid", graph.rounded("x", 0.04, zero_point, dtype)), 0.004, 0, out_dtype)
    )


@pytest.mark.parametrize(("shape", "dtype", "out_dtype"), CASES, ids=["all-bytes", "few", "tasks"])
def test_every_byte(shape: tuple[int, ...], dtype: str, out_dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All instructions of this machine find what ONNX Runtime computes of each byte."""
    model = sigmoid(shape, dtype, out_dtype)
    x = np.resize(0.04 * np.random.default_rng(3).permutation(np.arange(-128, 128)), shape).astype("float32")
    expected = onnxruntimes(model, x)
    for row in instructions_here():
        monkeypatch.setattr(quantized_tables, "lookup_instruction", lambda target, row=row: row)
        np.testing.assert_array_equal(tvmconv.build(model)(x), expected, err_msg=str(row))


def test_open_sizes() -> None:
    """One build looks up tensors of any batch."""
    model = sigmoid((1, 3, 5, 7), "uint8", "uint8")
    network = tvmconv.build(tvmconv.import_model(model, shapes={"x": ("n", 3, 5, 7)}))
    for batch in (1, 40):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 5, 7)).astype("float32")
        expected = np.concatenate([onnxruntimes(model, image[None]) for image in x])
        np.testing.assert_array_equal(network(x), expected)


@pytest.mark.parametrize(("cpu", "row"), list(zip(CPUS, LOOKUP_INSTRUCTIONS, strict=True)), ids=CPUS)
def test_instructions(cpu: str, row: LookupInstruction) -> None:
    target = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": cpu})
    assert lookup_instruction(target) == row
    assert lookup_instruction(resolve_target({"kind": "cuda", "arch": "sm_90"})) is None
    assert lookup_instruction(resolve_target({"kind": "llvm", "mtriple": "aarch64-linux-gnu"})) is None
