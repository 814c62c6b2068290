"""`tvmconv bench suite`: suites, checks, reports and their comparison."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.bench import suite, timing
from tvmconv.bench.html.charts import PALETTE
from tvmconv.bench.peers.ours import Tvmconv
from tvmconv.bench.peers.pytorch import PyTorch
from tvmconv.bench.report import Change, Report, Row, geometric_means, times_faster
from tvmconv.bench.timing import Timing
from tvmconv.checking import suites
from tvmconv.targets import device_facts, has_gpu

torch = pytest.importorskip("torch")
depthwise, conv2d = ConvWorkload.depthwise, ConvWorkload.conv2d

TINY = {
    "tiny": {
        "batch": 1,
        "padding": "SAME",
        "stride": 2,
        "columns": ["name", "in_channels", "height", "width", "kernel", "channel_multiplier"],
        "rows": [["even", 4, 10, 12, 3, 1], ["odd", 3, 9, 11, 3, 2]],
    },
    "tiny-dense": {
        "batch": {"cuda": 128, "llvm": 2},
        "padding": "VALID",
        "stride": 1,
        "columns": ["name", "in_channels", "height", "width", "kernel", "out_channels"],
        "rows": [["dense", 4, 9, 8, 3, 6]],
    },
}


@pytest.fixture
def tiny(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the real suites by two small ones, timed for a moment."""
    monkeypatch.setattr(suites, "_read", lambda: TINY)


@pytest.mark.parametrize("kind", ["cuda", "llvm"])
def test_suites(kind: str) -> None:
    found = {name: suites.load_suite(name, kind) for name in suites.suite_names()}
    assert {name: len(workloads) for name, workloads in found.items()} == {
        "depthwise-tutorial": 7,
        "depthwise-networks": 6,
        "depthwise-large": 11,
        "im2win-thesis": 12,
        "sparse-paper": 10,
        "pointwise-networks": 15,
        "3x3-networks": 18,
        "linear-networks": 28,
        "grouped-networks": 20,
    }
    batch = 128 if kind == "cuda" else 1
    assert found["im2win-thesis"]["conv3"] == conv2d((batch, 3, 227, 227), (64, 3, 7, 7), stride=2, padding="VALID")
    batch = 64 if kind == "cuda" else 1
    assert found["sparse-paper"]["resnet-conv2"] == conv2d((batch, 128, 28, 28), (128, 128, 3, 3), padding=1)
    batch = 32 if kind == "cuda" else 1
    strided = conv2d((batch, 512, 28, 28), (1024, 512, 1, 1), stride=2)
    assert found["pointwise-networks"]["512x28-1024-s2"] == strided
    assert found["3x3-networks"]["unet-128x224-64"] == conv2d((batch, 128, 224, 224), (64, 128, 3, 3), padding=1)
    assert found["linear-networks"]["vgg-fc6-128"] == conv2d((128, 25088, 1, 1), (4096, 25088, 1, 1))
    grouped = conv2d((batch, 1024, 14, 14), (1024, 32, 3, 3), groups=32, stride=2, padding=1)
    assert found["grouped-networks"]["resnext-1024x14-s2"] == grouped
    assert all(4 <= min(each.multiplier, each.w_shape[1]) <= 32 for each in found["grouped-networks"].values())
    assert found["depthwise-networks"]["k7-384x14"] == depthwise((128, 384, 14, 14), (384, 1, 7, 7))
    assert {workload.batch for workload in suites.load_suite("im2win-thesis", kind, batch=8).values()} == {8}


def test_report(tiny: None, tmp_path: Path) -> None:
    picture, written = tmp_path / "report.svg", tmp_path / "report.json"
    options = ("--peers", "pytorch,pytorch-tf32,onnxruntime", "--rounds", 2, "--plot", picture, "-o", written)
    report = tvmconv_json("bench", "suite", "tiny", "tiny-dense", *options)
    assert json.loads(written.read_bytes()) == report
    assert report["device"]["name"] == device_facts("llvm").name
    assert report["target"]["kind"] == "llvm"
    assert (report["cache"], report["rounds"]) == ("warm", 2)
    assert {"tvmconv", "apache-tvm", "torch"} <= set(report["versions"])
    assert report["roofs"]["bandwidth"] > 1e8
    assert report["roofs"]["flops"] > 1e8
    even, _, dense = report["rows"]
    workload = depthwise((1, 4, 10, 12), (4, 1, 3, 3), stride=2)
    assert (even["workload"], even["flops"], even["bytes"]) == (str(workload), workload.flops, workload.bytes_moved)
    assert even["selection"] == "default configuration"
    assert even["failed"] == {}
    assert list(even["times"]) == ["tvmconv", "pytorch", "onnxruntime", "copy", "copy-kernel"]
    for times in even["times"].values():
        assert 0 < times["low"] <= times["median"] <= times["high"] < 1
    assert even["skipped"] == {"pytorch-tf32": "for float32 on a GPU"}
    assert list(dense["times"]) == list(even["times"])
    assert dense["workload"] == str(conv2d((2, 4, 9, 8), (6, 4, 3, 3), padding="VALID"))
    assert dense["selection"] == "default configuration"
    drawn = [each.attrib.get("fill") for each in ElementTree.parse(picture).iter() if each.tag.endswith("}rect")]
    assert PALETTE["pytorch"] in drawn
    assert PALETTE["onnxruntime"] in drawn


def test_tables(tiny: None) -> None:
    result = tvmconv(
        "bench", "suite", "tiny", "tiny-dense", "--peers", "tvm,tvmconv-plain", "--epilogue", "--rounds", 1
    )
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[2:4] == [
        "tiny",
        "name µs spread GFLOP/s GB/s copy, µs % of copy x tvmconv-plain x tvm",
    ]
    assert lines[6].startswith("geometric means (of so many): ")
    assert "tiny even: depthwise 1x4x10x12 -> 4, 3x3 stride 2x2 padding 0,0,1,1 + scale+shift+relu" in result.stderr


def test_cold_caches(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[int] = []
    prepare = PyTorch.prepare

    def count(self: PyTorch, workload: ConvWorkload, target: Any, sets: Sequence[Any]) -> Any:
        prepared.append(len({operands["x"].data_ptr() for operands in sets}))
        return prepare(self, workload, target, sets)

    monkeypatch.setattr(PyTorch, "prepare", count)
    monkeypatch.setattr(timing, "last_level_cache", lambda on_gpu: 5000)
    report = tvmconv_json("bench", "suite", "tiny", "--cold", "--peers", "pytorch", "--rounds", 1)
    assert report["cache"] == "cold"
    assert prepared == [10_000 // row["bytes"] + 1 for row in report["rows"]]
    assert prepared[0] > 1
    assert report["roofs"]["flops"] > 1e8  # nothing is drawn here


def test_threads_are_the_same_for_all(tmp_path: Path) -> None:
    script = (
        f"import sys; from tvmconv.checking import suites; suites._read = lambda: {TINY!r}\n"
        "from tvmconv.bench import roofs, suite, timing\n"
        "roofs.COPIED_BYTES, roofs.STEPS, suite.SECONDS, timing._WallTimer.SETTLE = 2**20, 2**10, 0.001, 0.001\n"
        "from tvmconv.cli import main\n"
        "try: main()\n"
        "finally: import torch; print(torch.get_num_threads(), file=sys.stderr)"
    )
    options = ["bench", "suite", "tiny", "--threads", "2", "--peers", "pytorch", "--rounds", "1", "--json"]
    done = subprocess.run([sys.executable, "-c", script, *options], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["device"]["threads"] == 2
    assert done.stderr.splitlines()[-1] == "2"


def test_a_peer_that_is_wrong_or_fails_is_left_out(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: PyTorch, workload: ConvWorkload, target: Any, sets: Sequence[Any]) -> Any:
        return [lambda: torch.zeros(workload.output_shape)]

    def fail(self: PyTorch, workload: ConvWorkload, target: Any, sets: Sequence[Any]) -> Any:
        raise RuntimeError("out of memory\nand more")

    for prepare, reason in ((wrong, "wrong: "), (fail, "out of memory")):
        monkeypatch.setattr(PyTorch, "prepare", prepare)
        row, _ = tvmconv_json("bench", "suite", "tiny", "--peers", "pytorch", "--rounds", 1)["rows"]
        assert row["failed"]["pytorch"].startswith(reason)
        assert "pytorch" not in row["times"]


def test_tvmconv_has_to_be_right(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong result ends the run; rows measured before it are printed."""
    prepare = Tvmconv.prepare

    def wrong(self: Tvmconv, workload: ConvWorkload, target: Any, sets: Sequence[Any]) -> Any:
        if workload.in_channels == 4:
            return prepare(self, workload, target, sets)
        return [lambda: torch.zeros(workload.output_shape)]

    monkeypatch.setattr(Tvmconv, "prepare", wrong)
    result = tvmconv("bench", "suite", "tiny", "--peers", "pytorch", "--json")
    assert result.exit_code == 5
    assert [row["name"] for row in json.loads(result.stdout)["rows"]] == ["even"]
    assert "error: tvmconv computes depthwise 1x3x9x11" in result.stderr


def test_rows_outlive_a_run_that_is_ended(tiny: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    prepare, path = Tvmconv.prepare, tmp_path / "report.json"

    def ended(self: Tvmconv, workload: ConvWorkload, target: Any, sets: Sequence[Any]) -> Any:
        if workload.in_channels == 4:
            return prepare(self, workload, target, sets)
        raise SystemExit(9)

    monkeypatch.setattr(Tvmconv, "prepare", ended)
    assert tvmconv("bench", "suite", "tiny", "--peers", "pytorch", "--rounds", 1, "-o", path).exit_code == 9
    report = json.loads(path.read_bytes())
    assert [row["name"] for row in report["rows"]] == ["even"]
    assert report["roofs"] is None


FAILURES = [
    (["nonsense"], 2, "suite is 'nonsense'; expected one of tiny, tiny-dense"),
    (["tiny", "--peers", "nobody"], 2, "peers is 'nobody'"),
    (["tiny", "--plot", "bars.png"], 2, "does not end in .svg"),
]


@pytest.mark.parametrize(("options", "code", "message"), FAILURES, ids=lambda value: str(value)[:40])
def test_failures(tiny: None, options: list[str], code: int, message: str) -> None:
    result = tvmconv("bench", "suite", *options)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


@pytest.mark.skipif(has_gpu(), reason="there is a GPU here")
@pytest.mark.parametrize("command", ["suite tiny", "networks"])
def test_without_a_gpu(command: str, tiny: None) -> None:
    result = tvmconv("bench", *command.split(), "--target", "cuda")
    assert (result.exit_code, result.stdout) == (7, "")


def test_missing_packages_are_named_before_anything_is_measured(tiny: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "measure_row", None)
    monkeypatch.setattr(import_module("tvmconv.cli.bench.run"), "find_spec", lambda name: None)
    result = tvmconv("bench", "suite", "tiny")
    assert (result.exit_code, "pip install 'tvmconv[torch]'" in result.stderr) == (1, True)


def canned(name: str, ours: Timing | None, **others: float) -> Row:
    times = {name: Timing(seconds, seconds, seconds) for name, seconds in {**others, "copy": 1e-6}.items()}
    ours_too = {} if ours is None else {"tvmconv": ours}
    times["copy-kernel"] = Timing(2e-6, 2e-6, 2e-6)
    workload = suites.load_suite("tiny", "llvm")[name]
    return Row("tiny", name, str(workload), workload.flops, workload.bytes_moved, None, ours_too | times, {}, {})


def test_what_follows_from_a_row(tiny: None) -> None:
    even = canned("even", Timing(2e-6, 1e-6, 3e-6), pytorch=8e-6, tvm=2e-6)
    odd = canned("odd", Timing(1e-6, 1e-6, 1e-6), pytorch=1e-6)
    absent = canned("odd", None, pytorch=1e-6)
    assert even.limit == 1e-6
    assert (times_faster(even, "pytorch"), times_faster(odd, "tvm"), times_faster(absent, "pytorch")) == (4, None, None)
    means = geometric_means([even, odd, absent], ["pytorch", "tvm", "onnxruntime"])
    assert means == {"pytorch": (pytest.approx(2), 2), "tvm": (pytest.approx(1), 1)}


@pytest.mark.parametrize(
    ("new", "expected"),
    [
        (Timing(1.04, 1.02, 1.1), False),
        (Timing(1.06, 1.02, 1.1), True),
        (Timing(1.5, 0.99, 1.6), False),
        (Timing(0.5, 0.4, 3.0), False),
    ],
    ids=["less-than-allowed", "slower", "noisy", "faster"],
)
def test_regressions(new: Timing, expected: bool) -> None:
    assert Change("name", Timing(1.0, 0.9, 1.2), new).is_regression(0.05) == expected


def written(folder: Path, name: str, seconds: float, **changes: Any) -> Path:
    """Return a report in which tvmconv takes so long for "even", 1 µs more or less, and 10 µs for "odd"."""
    rows = [
        canned("even", Timing(seconds, seconds - 1e-6, seconds + 1e-6)),
        canned("odd", Timing(10e-6, 10e-6, 10e-6)),
    ]
    device = device_facts("llvm")
    assert device is not None
    report = Report({}, device, {}, "warm", 9, None, rows)
    path = folder / f"{name}.json"
    path.write_bytes(msgspec.json.encode(msgspec.structs.replace(report, **changes)))
    return path


def test_comparison(tiny: None, tmp_path: Path) -> None:
    options = ["bench", "compare", written(tmp_path, "old", 8e-6), written(tmp_path, "new", 10e-6)]
    found = tvmconv_json(*options)
    assert [(row["name"], row["old"]["median"], row["new"]["median"], row["ratio"]) for row in found["rows"]] == [
        ("tiny even", 8e-6, 10e-6, pytest.approx(1.25)),
        ("tiny odd", 10e-6, 10e-6, 1),
    ]
    assert found["geometric_mean"] == pytest.approx(1.25**0.5)
    allowed = tvmconv(*options, "--fail-on-regress", "30%")
    assert allowed.exit_code == 0
    assert "geometric mean of 2: 1.12 times as long as before" in allowed.stdout
    slower = tvmconv(*options, "--fail-on-regress", "5")
    assert slower.exit_code == 6
    assert slower.stderr == "error: slower than before by more than 5%: tiny even (10.0 µs, before 8.0)\n"
    assert "tiny odd" in slower.stdout
    assert "'five' is not of the form 5%" in tvmconv(*options, "--fail-on-regress", "five").stderr


def test_networks_are_compared_by_batch_and_precision(tmp_path: Path) -> None:
    paths = []
    for name, milliseconds in (("old", (4.0, 9.0)), ("new", (2.0, 9.0))):
        times = [{"tvmconv": dict.fromkeys(("median", "low", "high"), each / 1e3)} for each in milliseconds]
        about = [{"name": "resnet50", "batch": batch, "precision": "float16"} for batch in (1, 32)]
        rows = [{**each, "times": of_row} for each, of_row in zip(about, times, strict=True)]
        paths.append(tmp_path / f"{name}.json")
        paths[-1].write_text(json.dumps({"device": {"name": "a GPU"}, "rows": rows}))
    found = tvmconv_json("bench", "compare", *paths)["rows"]
    assert [(row["name"], row["ratio"]) for row in found] == [("resnet50 batch 1", 0.5), ("resnet50 batch 32", 1.0)]


def test_only_like_is_compared_with_like(tiny: None, tmp_path: Path) -> None:
    device, old = device_facts("llvm"), written(tmp_path, "old", 8e-6)
    assert device is not None
    for changes, message in (
        (
            {"device": msgspec.structs.replace(device, threads=64)},
            "64 threads, warm caches'; expected a document measured",
        ),
        ({"cache": "cold"}, "cold caches'; expected a document measured as the older one is"),
        ({"rows": []}, "expected a document with a row of"),
    ):
        result = tvmconv("bench", "compare", old, written(tmp_path, "new", 8e-6, **changes))
        assert (result.exit_code, result.stdout) == (2, "")
        assert message in result.stderr
    result = tvmconv("bench", "compare", old, __file__)
    assert result.exit_code == 2
    assert "expected what `tvmconv bench suite` or `bench networks` wrote" in result.stderr


def test_calls_are_made_in_turn_and_their_outputs_kept() -> None:
    made: list[int] = []
    timing.timer([lambda i=i: made.append(i) for i in range(3)], on_gpu=False, seconds=0.001)
    assert made[:7] == [0, 1, 2, 0, 1, 2, 0]
    outputs = timing._InTurn([lambda: torch.zeros(1000)] * 3)
    addresses = set()
    for _ in range(9):
        outputs()
        addresses.add(outputs.outputs[-1].data_ptr())
    assert len(addresses) >= 3


def test_slow_contenders_have_fewer_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(timing._WallTimer, "SLOW", 0.0)
    slow = timing.timer([lambda: calls.append("slow")], on_gpu=False, seconds=0.0)
    assert calls == ["slow"]
    slow()
    assert calls == ["slow"] * 2
    monkeypatch.setattr(timing, "PATIENCE", 0.0)
    timing.interleave({"slow": slow}, rounds=9)
    assert len(calls) == 2 + timing.FEWEST


def test_sets_are_more_than_twice_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.last_level_cache(on_gpu=False) > 2**18
    monkeypatch.setattr(timing, "last_level_cache", lambda on_gpu: 1000)
    assert [timing.sets_beyond_cache(nbytes, on_gpu=True) for nbytes in (300, 2000, 5000)] == [7, 2, 1]
