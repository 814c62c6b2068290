"""`benchmarks/accuracy.py`: errors by type, precision and kind of data, beside yardsticks and PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from tests.shared.scripts import rows_of, script
from tvmconv import ConvWorkload
from tvmconv.bench.peers.pytorch import PyTorch
from tvmconv.compute import conv2d_reference
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import multiplies, resolve_target
from tvmconv.testing import random_operands
from tvmconv.testing.factors import DATA, decades, fma_sums, limits

pytest.importorskip("torch")

NAMES = ["normal", "positive", "wide", "scattered", "with denormals", "tiny", "with spike"]
LONG = ["normal, long sums", "positive, long sums"]
OURS = ["tvmconv-strict", "tvmconv", "tvmconv-tf32"]
PEERS = ["pytorch", "pytorch-channels-last"]
YARDSTICKS = ["fma", "fma-tf32"]


@pytest.fixture
def accuracy(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """Return the script, with small workloads."""
    short, long = ConvWorkload.conv2d((1, 16, 5, 6), (8, 16, 3, 3)), ConvWorkload.conv2d((1, 512, 4, 4), (8, 512, 1, 1))
    with script("accuracy") as module:
        monkeypatch.setattr(module, "WORKLOADS", {"": short, ", long sums": long})
        yield module


def test_cpu(accuracy: ModuleType) -> None:
    rows = rows_of(accuracy, target="llvm", serial_twin=False)
    assert [(row["dtype"], row["name"]) for row in rows] == [
        (dtype, name) for dtype in ("float32", "float16", "bfloat16") for name in (*NAMES, *LONG)
    ]
    for row in rows:
        of_float32 = row["dtype"] == "float32"
        assert list(row["errors"]) == ([*YARDSTICKS, *OURS, *PEERS] if of_float32 else ["fma", "tvmconv", *PEERS])
        assert row["failed"] == {}
        assert not row["broken"].keys() & {*YARDSTICKS, *OURS}
        templates = row["templates"]
        assert list(templates) == ([*OURS] if of_float32 else ["tvmconv"])
        plain = ["cpu/direct", "cpu/pointwise"][: 1 + (row["name"] in LONG)]  # for 1x1 either may be faster
        if row["dtype"] == "float16":
            assert templates["tvmconv"] in plain
        elif row["dtype"] == "bfloat16" and multiplies(resolve_target("llvm"), "bfloat16"):
            assert templates["tvmconv"] in ("cpu/dot", "cpu/amx")
        elif of_float32:
            assert templates["tvmconv-strict"] in plain
            assert (templates["tvmconv"] == templates["tvmconv-tf32"] == "cpu/winograd") == (row["name"] not in LONG)
        if templates["tvmconv"] in ("cpu/dot", "cpu/amx") and row["name"] == "tiny":
            continue  # the instructions take denormal numbers for zeros
        uneven = row["name"] in ("scattered", "with spike")  # Winograd's errors are of the largest sums nearby
        if uneven and templates == {"tvmconv": "cpu/winograd"}:
            continue  # where no instruction multiplies bfloat16 numbers
        fma, ours = row["errors"]["fma"], row["errors"]["tvmconv-strict" if of_float32 and uneven else "tvmconv"]
        assert 0 < ours["rms"] <= 3 * fma["rms"]
        assert ours["rms"] <= ours["largest"] <= 3 * fma["largest"]
        if of_float32:
            assert row["errors"]["fma-tf32"]["rms"] > 20 * fma["rms"]
        else:
            assert ours["largest"] <= 1.01  # roundings of the result


def test_serial_twins(accuracy: ModuleType) -> None:
    rows = rows_of(accuracy, target="nvidia/nvidia-h100", serial_twin=True)
    assert list(rows[0]["errors"]) == [*YARDSTICKS, *OURS]
    strict, *others = rows[0]["templates"].values()
    assert strict in ("cuda/direct", "cuda/im2win")
    assert others == ["cuda/tensor", "cuda/tensor"]
    assert rows[-1]["templates"] == {"tvmconv": "cuda/tensor"}
    assert all(row["broken"] == row["failed"] == {} for row in rows)
    with pytest.raises(InvalidArgumentError, match="expected a CUDA target, with --serial-twin"):
        rows_of(accuracy, target="llvm", serial_twin=True)


def test_broken_promise_is_told(accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Factors of bfloat16 are not those of TF32."""
    monkeypatch.setattr(accuracy, "TF32_BITS", 7)
    monkeypatch.setattr(accuracy, "TYPES", ("float32",))
    rows = rows_of(accuracy, target="llvm", serial_twin=False)
    assert [list(row["broken"]) == ["fma-tf32"] for row in rows] == [
        row["name"].replace(" ", "_") not in accuracy.BEYOND_PROMISES for row in rows
    ]


def test_result_that_is_not_finite(accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accuracy, "TYPES", ("float16",))
    monkeypatch.setattr(accuracy, "fma_sums", lambda x, w: fma_sums(x, w) * np.nan)
    row, *_ = rows_of(accuracy, target="llvm", serial_twin=False)
    assert row["errors"]["fma"] == {"largest": None, "rms": None}
    assert "NaN at the wrong indices" in row["broken"]["fma"]


def test_peer_that_fails(accuracy: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any) -> None:
        raise RuntimeError("no algorithm\nand more")

    monkeypatch.setattr(accuracy, "TYPES", ("bfloat16",))
    monkeypatch.setattr(PyTorch, "prepare", fail)
    row, *_ = rows_of(accuracy, target="llvm", serial_twin=False)
    assert row["failed"] == dict.fromkeys(PEERS, "no algorithm")
    assert list(row["errors"]) == ["fma", "tvmconv"]


def test_yardstick_is_the_convolution(accuracy: ModuleType) -> None:
    """On small integers it is exact."""
    workload = ConvWorkload.conv2d((1, 3, 5, 6), (4, 3, 3, 2), padding=(0, 1, 2, 0))
    operands = {name: np.round(4 * array) for name, array in random_operands(workload).items()}
    exact = conv2d_reference(workload, operands["x"], operands["w"])
    np.testing.assert_array_equal(accuracy.fma(workload, operands), exact)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_data_have_the_limits_of_their_type(dtype: str) -> None:
    workload = ConvWorkload.conv2d((1, 64, 8, 8), (32, 64, 3, 3), dtype=dtype)
    for name, draw in DATA.items():
        drawn = draw(np.random.default_rng(0), workload.x_shape, workload.w_shape, dtype)
        x, w = (np.abs(each.astype(workload.storage.numpy).astype(np.float64)) for each in drawn)
        assert np.isfinite(x).all()
        assert np.isfinite(w).all()
        assert conv2d_reference(workload, x, w).max() < limits(dtype).max
        smallest, reach = float(limits(dtype).smallest_normal), 10.0 ** decades(dtype)
        if name == "tiny":
            assert 0.5 < (x < smallest).mean() < 0.9
        elif name == "with_denormals":
            assert (x[:, ::4] < smallest).all()
            assert (w[:, 1::4] < smallest).all()
        elif name == "with_spike":
            assert [(each > 100).sum() for each in (x, w)] == [1, 1]
        elif name == "wide":
            assert x.max() > reach**0.8
            assert w.max() > reach**0.8
        elif name == "scattered":
            assert x.max() / np.median(x) > reach**0.4
