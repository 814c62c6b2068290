"""The memory of convolutions: formulas against the kernels' own allocations, and the memory measured for a call."""

from __future__ import annotations

from importlib import import_module
from math import prod
from typing import Any

import pytest

from tests.shared.command_line import tvmconv, tvmconv_json
from tvmconv import ConvWorkload
from tvmconv.bench import memory, suite
from tvmconv.bench.memory import Memory, direct_bytes, im2col_bytes, im2win_bytes, tiny, workspace_on_cpu
from tvmconv.bench.peers import known_peers
from tvmconv.bench.peers.ours import Configured
from tvmconv.bench.report import Row, memory_means
from tvmconv.runtime import operators
from tvmconv.schedules.cpu import direct
from tvmconv.schedules.cpu.direct import im2win
from tvmconv.targets import resolve_target

torch = pytest.importorskip("torch")
AVX_512 = resolve_target({"kind": "llvm", "mcpu": "skylake-avx512"})

WORKLOADS = [
    ConvWorkload.conv2d((2, 16, 10, 12), (32, 16, 3, 3), padding="VALID"),
    ConvWorkload.conv2d((2, 16, 9, 12), (32, 8, 3, 5), padding=(1, 2, 0, 2), groups=2),
    ConvWorkload.conv2d((1, 16, 14, 12), (16, 16, 3, 1), padding=0, dilation=(2, 1)),
    ConvWorkload.conv2d((1, 16, 16, 24), (16, 16, 2, 2), padding=0, stride=2),
    ConvWorkload.conv2d((1, 16, 8, 12), (16, 16, 1, 1)),
]
by_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=str)


@by_workload
def test_formulas_are_what_kernels_allocate(workload: ConvWorkload) -> None:
    """Kernels allocate the formula's bytes beside the weight, which they lay out in whole blocks."""
    tile = {"vectors": 1, "vector": 16, "rows": 1, "columns": workload.output_size[1], "channels": 1, "tiles": 1}
    weight = 4 * prod(workload.w_shape)
    for config, formula in (
        (direct.Config(**tile, staged=1, parallel=False), direct_bytes),
        (im2win.Config(**tile, staged=2, parallel=False), im2win_bytes),
    ):
        assert operators.compile(workload, AVX_512, config).workspace_bytes == weight + formula(workload)


@by_workload
def test_the_formula_of_im2col_is_what_torch_unfolds(workload: ConvWorkload) -> None:
    top, left, bottom, right = workload.padding
    x = torch.nn.functional.pad(torch.zeros(workload.x_shape), (left, right, top, bottom))
    columns = torch.nn.functional.unfold(x, workload.kernel, workload.dilation, 0, workload.stride)
    assert im2col_bytes(workload) == columns.nbytes >= im2win_bytes(workload)


def test_windows_as_high_as_the_stride_are_the_input() -> None:
    workload = WORKLOADS[3]
    assert im2win_bytes(workload) == im2col_bytes(workload) == 4 * prod(workload.x_shape)
    half = ConvWorkload.conv2d((1, 16, 16, 24), (16, 16, 2, 2), padding=0, stride=2, dtype="float16")
    assert im2win_bytes(half) == im2col_bytes(half) == 2 * prod(workload.x_shape)


@pytest.mark.skipif(not memory.can_measure(on_gpu=False), reason="this system does not tell the memory of a process")
def test_measured_in_a_process_of_its_own() -> None:
    workload, target = ConvWorkload.conv2d((1, 256, 20, 20), (256, 256, 3, 3), padding=0), resolve_target("llvm")
    for algorithm in ("direct", "im2win"):
        expected = operators.compile(workload, target, algorithm=algorithm).workspace_bytes
        taken = workspace_on_cpu(known_peers()[f"tvmconv-{algorithm}"], workload, target)
        assert -(2**16) < taken - expected < 2**20, algorithm  # the tasks' own memory, and parts of pages
    assert workspace_on_cpu(known_peers()["im2col-gemm"], workload, target) > im2col_bytes(workload)
    with pytest.raises(RuntimeError, match="config is 'nonsense'"):
        workspace_on_cpu(Configured("nonsense"), workload, target)


@pytest.mark.parametrize("groups", [1, 2, 8], ids=["dense", "grouped", "depthwise"])
def test_a_tiny_workload_has_the_same_form(groups: int) -> None:
    workload = ConvWorkload.conv2d((8, 8, 50, 50), (16, 8 // groups, 3, 11), dilation=2, groups=groups, scale=True)
    small = tiny(workload)
    assert small.is_depthwise == workload.is_depthwise
    assert (small.groups > 1) == (groups > 1)
    assert (small.kernel, small.dilation, small.epilogue) == (workload.kernel, workload.dilation, workload.epilogue)
    assert small.bytes_moved < 20_000


@pytest.fixture
def measured(brief: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend one small layer, timed for a moment; tvmconv takes 1 kB, its im2win 2, and PyTorch 10."""
    workload = ConvWorkload.conv2d((1, 4, 9, 9), (8, 4, 3, 3), padding=0)
    taken = {"tvmconv": 1000, "tvmconv-im2win": 2000, "pytorch": 10_000}
    monkeypatch.setattr(import_module("tvmconv.cli.bench.suite"), "load_suite", lambda *arguments: {"layer": workload})
    monkeypatch.setattr(suite, "workspace_on_cpu", lambda peer, workload, target: taken[peer.name])


PEER_OPTIONS = ["--peers", "tvmconv-im2win,pytorch", "--rounds", "1"]


def test_report(measured: None) -> None:
    (row,) = tvmconv_json("bench", "suite", "small", "--memory", *PEER_OPTIONS)["rows"]
    assert row["memory"] == {
        "formulas": {"direct": 0, "im2win": 4 * 4 * 7 * 3 * 9, "im2col": 4 * 4 * 7 * 7 * 9},
        "measured": {"tvmconv": 1000, "tvmconv-im2win": 2000, "pytorch": 10_000},
    }
    (row,) = tvmconv_json("bench", "suite", "small", *PEER_OPTIONS)["rows"]
    assert row["memory"] is None


def test_table(measured: None) -> None:
    lines = tvmconv("bench", "suite", "small", "--memory", *PEER_OPTIONS).stdout.splitlines()
    place = lines.index("MB beside operands and output: by formula (*), and measured")
    headers, values = (" ".join(line.split()) for line in lines[place + 1 : place + 3])
    assert headers == "name operands and output direct* im2win* im2col* tvmconv tvmconv-im2win pytorch"
    assert values == "layer 0.004016 0 0.003024 0.007056 0.001 0.002 0.01"
    note = "takes, operands and output included, on average (of so many)"
    assert lines[place + 3 : place + 5] == [
        f"tvmconv {note}: 64.2% less than pytorch (1)",
        f"tvmconv-im2win {note}: 57.1% less than pytorch (1)",
    ]


def test_means() -> None:
    def row(**measured: int) -> Row:
        return Row("suite", "name", "workload", 1, 100, None, {}, {}, {}, Memory({}, measured))

    rows: list[Any] = [row(ours=0, a=100, b=0), row(ours=300, a=100), Row("", "", "", 1, 1, None, {}, {}, {})]
    assert memory_means(rows, "ours", ["a", "b", "c"]) == {"a": (1.25, 2), "b": (1.0, 1)}


def test_a_system_that_does_not_tell_is_refused(measured: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CLEAR_REFS", memory.STATUS / "nowhere")
    result = tvmconv("bench", "suite", "small", "--memory")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "expected a GPU, or Linux" in result.stderr
