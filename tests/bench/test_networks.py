"""`tvmconv bench networks`: the contenders, the checks, and the output."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.shared.command_line import tvmconv, tvmconv_json

pytest.importorskip("torch")

import torch

from tvmconv.bench.networks import contenders, models, network
from tvmconv.bench.networks.contenders import PEERS, PyTorch
from tvmconv.bench.networks.weights import prune, randomized
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import multiplies, resolve_target


def tiny() -> torch.nn.Module:
    layers = [torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers, torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 5))


PARAMETERS = {
    "alexnet": 61_100_840,
    "convnext_tiny": 28_589_128,
    "densenet121": 7_978_856,
    "efficientnet_b0": 5_288_548,
    "inception_v3": 23_834_568,
    "mobilenet_v2": 3_504_872,
    "mobilenet_v3": 2_542_856,
    "mobilenet_v3_large": 5_483_032,
    "regnet_y_400mf": 4_344_144,
    "resnet18": 11_689_512,
    "resnet50": 25_557_032,
    "shufflenet_v2": 2_278_604,
    "squeezenet": 1_235_496,
    "unet": 31_037_698,
    "vgg16": 138_357_544,
    "vgg19": 143_667_240,
    "vit_small": 22_050_664,
}
"""The numbers of parameters of torchvision's networks of these names, from its documentation, of inception_v3 without
the second classifier; of the U-Net of github.com/milesial/Pytorch-UNet; and of DeiT-S, in its paper 22 million."""

REAL = models.NETWORKS


def test_networks_are_those_of_the_papers() -> None:
    assert REAL.keys() == PARAMETERS.keys()
    for name, make in REAL.items():
        with torch.device("meta"):
            module = make().eval()
            size = models.SIZES.get(name, models.SIZE)
            assert module(torch.empty(2, 3, size, size)).shape == ((2, 2, size, size) if name == "unet" else (2, 1000))
        assert (name, sum(weight.numel() for weight in module.parameters())) == (name, PARAMETERS[name])


@pytest.fixture(autouse=True)
def quick(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the real networks by a tiny one, timed for a moment."""
    monkeypatch.setattr(models, "NETWORKS", {"tiny": tiny})


def test_all_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    report = tvmconv_json("bench", "networks", "tiny", "--batch", 3, "--size", 64, "--rounds", 2)
    (row,) = report["rows"]
    assert (row["name"], row["batch"], row["size"], row["sparsity"]) == ("tiny", 3, 64, None)
    assert list(row["times"]) == ["tvmconv", "pytorch", "torch-compile", "onnxruntime", "openvino", "tvm"]
    assert (row["skipped"], row["failed"], row["memory"]) == ({"pytorch-tf32": "on a GPU"}, {}, {})
    for name, times in row["times"].items():
        assert 0 < times["low"] <= times["median"] <= times["high"] < 1
        assert row["errors"][name] < 1e-5
        assert row["build_seconds"][name] > 0
        assert row["file_bytes"][name] > 4 * sum(weight.numel() for weight in tiny().parameters())
    assert row["kernels"] == {"tvmconv cpu/direct": 2}


def test_pruned_beside_its_dense_self() -> None:
    result = tvmconv("bench", "networks", "tiny", "--size", 64, "--rounds", 1, "--sparsity", 0.9, "--peers", "pytorch")
    assert result.exit_code == 0, result.stderr
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[2:4] == [
        "tiny, 1 x 3 x 64 x 64, 90% zeros",
        "ms images/s spread x tvmconv error dB build, s file, MB",
    ]
    assert [line.split()[0] for line in lines[4:7]] == ["tvmconv", "tvmconv-dense", "pytorch"]
    assert lines[7].startswith("convolutions of tvmconv: ")
    assert "tvmconv cpu/sparse" in lines[7]


@pytest.mark.skipif(not multiplies(resolve_target("llvm"), "bfloat16"), reason="this CPU has no bfloat16")
def test_half_precision_beside_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, measured = [], network.measure_networks

    def kept(*arguments: Any) -> Iterator[network.NetworkRow]:
        rows.extend(measured(*arguments))
        yield from rows

    monkeypatch.setattr(network, "measure_networks", kept)
    peers = ["tvmconv-float32", "pytorch", "pytorch-half", "pytorch-autocast", "torch-compile-max-autotune"]
    options = ("--size", 64, "--rounds", 1, "--precision", "bfloat16", "--peers", ",".join(peers))
    (row,) = tvmconv_json("bench", "networks", "tiny", *options)["rows"]
    assert list(row["times"]) == list(row["top1"]) == ["tvmconv", *peers]
    assert row["precision"] == "bfloat16"
    assert max(row["ratios"][name] for name in ("tvmconv", *peers[2:])) < 70 < row["ratios"]["tvmconv-float32"]
    assert min(row["top1"].values()) > 0.9
    assert row["top1"]["tvmconv-float32"] == row["top1"]["pytorch"] == 1
    monkeypatch.setattr(network, "measure_networks", lambda *arguments: iter(rows))
    lines = tvmconv("bench", "networks", "tiny", *options).stdout.splitlines()
    assert "tiny, 1 x 3 x 64 x 64, precision bfloat16" in lines


def test_weights_are_pruned_by_magnitude() -> None:
    module, whole = randomized(tiny), randomized(tiny)
    prune(module, 0.75)
    for part, before in zip(module, whole, strict=True):
        if hasattr(part, "weight") and part.weight.dim() > 1:
            zero = part.weight == 0
            assert int(zero.sum()) == round(0.75 * zero.numel())
            assert before.weight.abs()[zero].max() <= before.weight.abs()[~zero].min()
            assert part.weight.norm().item() == pytest.approx(before.weight.norm().item(), rel=1e-5)


def test_the_means_of_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "NETWORKS", {"tiny": tiny, "small": tiny})
    result = tvmconv("bench", "networks", "tiny", "small", "--size", 64, "--rounds", 1, "--peers", "pytorch")
    means = result.stdout.splitlines()[-1]
    assert means.startswith("batch 1, geometric means (of so many): ")
    assert means.endswith(" x pytorch (2)")


def test_those_that_fail_and_those_that_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(PyTorch):
        def prepare(self, *given: Any) -> contenders.Prepared:
            prepared = super().prepare(*given)
            return prepared._replace(call=lambda: 1.01 * prepared.call())

    class Broken(PyTorch):
        def prepare(self, *given: Any) -> contenders.Prepared:
            raise RuntimeError("no kernel\nand a long trace")

    monkeypatch.setattr(network, "PEERS", {"wrong": Wrong("wrong"), "broken": Broken("broken")})
    (row,) = tvmconv_json("bench", "networks", "tiny", "--size", 64, "--rounds", 1)["rows"]
    assert list(row["times"]) == ["tvmconv"]
    assert row["failed"]["broken"] == "no kernel"
    assert row["failed"]["wrong"].startswith("wrong computes tiny wrongly: it differs by ")
    monkeypatch.setenv("TVM_NUM_THREADS", "2")
    text = tvmconv("bench", "networks", "tiny", "--size", 64, "--rounds", 1, "--threads", 1).stdout
    assert os.environ["TVM_NUM_THREADS"] == "1"
    assert "\nbroken failed: no kernel\n" in text

    monkeypatch.setattr(network, "OURS", replace(network.OURS, sparse="nonsense"))
    assert tvmconv("bench", "networks", "tiny", "--peers", "wrong").exit_code == 2


def test_built_ahead_by_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they have built is not built again; what failed there fails in its turn."""

    class Broken(PyTorch):
        def prepare(self, *given: Any) -> contenders.Prepared:
            raise RuntimeError("no kernel\nand a long trace")

    monkeypatch.setattr(network, "PEERS", {"broken": Broken("broken", compiles=True), "pytorch": PEERS["pytorch"]})
    monkeypatch.setattr(contenders, "import_model", None)  # here, and not in other processes
    result = tvmconv("bench", "networks", "tiny", "--size", 64, "--rounds", 1, "--jobs", 2, "--json")
    assert result.exit_code == 0, result.stderr
    (row,) = json.loads(result.stdout)["rows"]
    assert list(row["times"]) == list(row["file_bytes"]) == ["tvmconv", "pytorch"]
    assert list(row["build_seconds"]) == ["pytorch"]
    assert row["kernels"] == {"tvmconv cpu/direct": 2}
    assert row["failed"] == {"broken": "no kernel"}
    assert "of 2: tiny, batch 1 for broken failed: " in result.stderr
    assert "of 2: tiny, batch 1 for tvmconv built in " in result.stderr


def test_rows_of_a_run_that_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the file, one for each batch, before the next network begins."""
    measured, found, path = network.measure_networks, list[list[int]](), tmp_path / "rows.json"

    def watched(*given: Any) -> Iterator[network.NetworkRow]:
        for row in measured(*given):
            yield row
            found.append([each["batch"] for each in json.loads(path.read_text())["rows"]])

    monkeypatch.setattr(network, "measure_networks", watched)
    options = ("--batch", "2,1", "--size", 64, "--rounds", 1, "--peers", "pytorch", "-o", path)
    picture, table = tmp_path / "times.svg", tmp_path / "times.csv"
    result = tvmconv("bench", "networks", "tiny", *options, "--plot", picture, "--csv", table)
    assert result.exit_code == 0, result.stderr
    assert found == [[2], [2, 1]]
    assert picture.read_text().startswith("<svg")
    report = json.loads(path.read_text())
    assert {row["parameters"] for row in report["rows"]} == {sum(each.numel() for each in tiny().parameters())}
    with table.open() as file:
        lines = [*csv.DictReader(file)]
    assert [(line["infer_batch_size"], line["contender"]) for line in lines] == [
        (batch, name) for batch in ("2", "1") for name in ("tvmconv", "pytorch")
    ]
    for line in lines:
        (row,) = (row for row in report["rows"] if row["batch"] == int(line["infer_batch_size"]))
        seconds = row["times"][line["contender"]]["median"]
        assert (line["model"], line["infer_img_size"], line["param_count"]) == ("tiny", "64", "0.00")
        assert float(line["infer_step_time"]) == pytest.approx(1e3 * seconds, abs=1e-3)
        assert float(line["infer_samples_per_sec"]) == pytest.approx(row["batch"] / seconds, abs=0.01)
    assert report["rounds"] == 1
    for row, text in zip(report["rows"], result.stdout.split("\n\n")[1:], strict=False):
        (ours,) = [line.split() for line in text.splitlines() if line.split()[:1] == ["tvmconv"]]
        assert float(ours[2]) == pytest.approx(row["batch"] / row["times"]["tvmconv"]["median"], rel=1e-3)


def test_batches_are_positive() -> None:
    for text in ("0", "1,", "two", "-1"):
        result = tvmconv("bench", "networks", "tiny", "--batch", text)
        assert result.exit_code == 2
        assert f"'{text}' is no list of positive integers such as 1,32" in result.stderr


def test_rows_before_an_error_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = network.measure_networks

    def ending(names: Any, *others: Any) -> Iterator[network.NetworkRow]:
        yield from measured(names, *others)
        raise KeyboardInterrupt

    monkeypatch.setattr(network, "measure_networks", ending)
    result = tvmconv("bench", "networks", "tiny", "--size", 64, "--rounds", 1, "--peers", "pytorch")
    assert result.exit_code == 130
    assert "tiny, 1 x 3 x 64 x 64\n" in result.stdout


def test_names() -> None:
    with pytest.raises(InvalidArgumentError, match="network is 'vgg'; expected some of tiny"):
        network.choose_networks(["vgg"])
    with pytest.raises(
        InvalidArgumentError, match="peers is 'tensorflow'; expected some of tvmconv-float32, pytorch, "
    ):
        network.choose_peers(["pytorch", "tensorflow"])
    assert [peer.name for peer in network.choose_peers(None)] == [
        "pytorch", "pytorch-tf32", "torch-compile", "onnxruntime", "openvino", "tvm"
    ]  # fmt: skip
    (half,) = network.choose_peers(["pytorch-half"])
    assert half.obstacle(resolve_target("llvm")) == "with a precision of float16 or bfloat16"
    cuda = resolve_target({"kind": "cuda", "arch": "sm_90"})
    assert PEERS["onnxruntime"].obstacle(cuda) == "on a CPU"
    assert PEERS["onnxruntime"].obstacle(resolve_target("llvm")) is None
