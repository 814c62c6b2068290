"""Damaged and absurd input, which leads to an error of tvmconv or to a right result."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import onnx
import pytest
import tvm

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.records import record
from tvmconv import ConvWorkload
from tvmconv.autotvm.history import best_record
from tvmconv.autotvm.record import append, encode, load_from_file
from tvmconv.autotvm.simulator import Simulator
from tvmconv.autotvm.tidy import pruned
from tvmconv.dispatch import select, template_named
from tvmconv.dispatch.history import objection
from tvmconv.dispatch.task import Maker
from tvmconv.lowering import KERNEL_NAME, build_kernel
from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError
from tvmconv.targets import resolve_target
from tvmconv.testing import CONV2D, DEPTHWISE, check_result, random_operands
from tvmconv.testing.conformance import How, conformance
from tvmconv.testing.trials import Trial

ROOT = Path(__file__).parents[2]


@pytest.mark.usefixtures("without_torch")
def test_some_damaged_files() -> None:
    """`python -m tests.hostile --seconds 3600 --seed 1` tries more of them."""
    command = [sys.executable, "-m", "tests.hostile", *["--files", "40", "--seconds", "600", "--seed", "4"]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    assert "run and right" in done.stdout
    assert "applied and right" in done.stdout


def conv(**attributes: Any) -> onnx.ModelProto:
    graph = Graph((1, 4, 9, 9))
    return graph.model(graph.conv("x", (8, 4, 3, 3), **attributes))


def pool(**attributes: Any) -> onnx.ModelProto:
    graph = Graph((1, 4, 9, 9))
    return graph.model(graph.node("MaxPool", "x", kernel_shape=[2, 2], **attributes))


WINDOWS: dict[str, tuple[onnx.ModelProto, str]] = {
    "negative-dilation": (
        conv(dilations=[-(2**31), 1]),
        r"Conv \(node .*dilations \[-2147483648, 1\] has numbers below 1",
    ),
    "negative-padding": (conv(pads=[0, -1, 0, 0]), r"Conv \(node .*pads \[0, -1, 0, 0\] has numbers below 0"),
    "no-output": (conv(dilations=[5, 1]), "has a window of 11 that is larger than its input of 9, padding included"),
    "empty-output": (
        conv(pads=[0, 0, 0, 0], dilations=[1, 5], strides=[1, 2]),
        "has a window of 11 that is larger than its input of 9",
    ),
    "pool-dilation": (pool(dilations=[-3, 1]), r"MaxPool \(node .*dilations \[-3, 1\]"),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_windows_that_cannot_slide(name: str) -> None:
    model, message = WINDOWS[name]
    with pytest.raises(UnsupportedModelError, match=message):
        tvmconv.import_model(model)


@pytest.mark.parametrize("size", [2**45, 2**62], ids=["128-tebibytes", "past-64-bits"])
def test_constants_that_fit_no_memory(size: int) -> None:
    graph = Graph((1, 4, 9, 9))
    huge = graph.node("ConstantOfShape", graph.constant([size], "int64"))
    with pytest.raises(UnsupportedModelError, match=r"ConstantOfShape \(node .*has over 1073741824 elements"):
        tvmconv.import_model(graph.model(graph.node("Add", "x", huge)))


@pytest.mark.parametrize("padding", [2**31, 2**62])
def test_padding_past_any_tensor(padding: int) -> None:
    with pytest.raises(UnsupportedModelError, match=r"Conv \(node 'conv0'\)"):
        tvmconv.import_model(conv(pads=[0, 0, 0, padding]))


def test_a_model_without_an_opset() -> None:
    """Relax would take its operators for those of the first opset and lose Clip's bounds."""
    model = conv()
    model.opset_import[0].domain = "elsewhere"
    with pytest.raises(InvalidArgumentError, match=r"opset_import is \['elsewhere'\]; expected ONNX's own domain"):
        tvmconv.import_model(model)


@pytest.mark.parametrize("text", [b"Conv", b"v0"])
def test_texts_that_are_no_text(text: bytes) -> None:
    data = conv().SerializeToString()
    assert text in data
    with pytest.raises(InvalidArgumentError, match="texts in UTF-8"):
        tvmconv.import_model(data.replace(text, b"\xff" * len(text)))


LINES: dict[str, Callable[[dict[str, Any]], None]] = {
    "target-that-is-no-json": lambda line: line["input"].__setitem__(0, '{"kind"'),
    "target-with-other-features": lambda line: line["input"].__setitem__(0, '{"kind": "llvm", "mattr": 3}'),
    "list-for-a-knob": lambda line: line["config"]["entity"][0].__setitem__(2, [1]),
    "no-costs": lambda line: line["result"].__setitem__(0, []),
    "cost-of-nothing": lambda line: line["result"].__setitem__(0, [1e-6, 0]),
    "workload-without-sense": lambda line: line["input"][2][0].__setitem__("groups", 3),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_that_are_no_records(name: str, tmp_path: Path) -> None:
    line = msgspec.json.decode(encode(record()))
    LINES[name](line)
    (tmp_path / "log.jsonl").write_bytes(msgspec.json.encode(line))
    log = load_from_file(tmp_path / "log.jsonl")
    assert (log.records, log.skipped) == ([], {"foreign": 1})


def test_knobs_of_another_type_are_not_applied() -> None:
    one = record()
    assert best_record([one]) is not None
    entity = tuple((name, "ot", str(value)) for name, _, value in one.config.entity)
    other = msgspec.structs.replace(one, config=msgspec.structs.replace(one.config, entity=entity))
    template, target = template_named(one.template), resolve_target("llvm")
    assert objection(other, target, Maker.of(template), None) == "with other knobs"


TEMPLATES = ("space", "cpu", "cpu/machine", "cpu/nothing", "..", "")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_log_that_names_another_module(name: str, tmp_path: Path) -> None:
    """The name may be that of a template that another process has registered: the record is kept, and not used."""
    one = record()
    other = msgspec.structs.replace(one, input=(one.target, name, *one.input[2:]))
    append(tmp_path / "log.jsonl", [one, other])
    log = load_from_file(tmp_path / "log.jsonl")
    assert pruned(log) == [one, other]
    with pytest.raises(InvalidArgumentError, match="expected those of a schedule that is here"):
        Simulator([other])


ABSURD: dict[str, ConvWorkload] = {
    "kernel-as-large-as-the-image": ConvWorkload.depthwise((1, 1, 200, 200), (1, 1, 200, 200), padding=0),
    "a-million-channels": ConvWorkload.conv2d((1, 2**20, 1, 1), (1, 2**20, 1, 1)),
    "a-million-images": ConvWorkload.conv2d((2**20, 1, 1, 1), (3, 1, 1, 1)),
    "stride-past-everything": ConvWorkload.conv2d((1, 2, 6, 6), (4, 2, 3, 3), stride=2**13, padding=1),
    "dilation-of-one-element": ConvWorkload.depthwise((1, 4, 6, 6), (4, 1, 1, 1), dilation=2**30),
    "padding-past-everything": ConvWorkload.conv2d((1, 1, 2, 2), (2, 1, 1, 1), padding=(0, 0, 0, 2**18)),
}


def run(workload: ConvWorkload) -> None:
    target = resolve_target("llvm")
    executable, workspace, _ = build_kernel(Problem(workload), select(Problem(workload), target), target)
    operands = random_operands(workload)
    tensors = [tvm.runtime.tensor(array) for array in operands.values()]
    executable[KERNEL_NAME](*tensors, *(tvm.runtime.empty(*parameter) for parameter in workspace.parameters))
    check_result(workload, operands, tensors[-1].numpy())


@pytest.mark.parametrize("name", ABSURD)
def test_absurd_but_legal(name: str) -> None:
    run(ABSURD[name])


@pytest.mark.usefixtures("without_torch")
def test_no_access_is_out_of_bounds() -> None:
    """Operands lie beside memory that may not be touched; `tvmconv verify --bounds` does so with random ones."""
    trials = [
        Trial(case.workload, "auto", None, operands)
        for number, case in enumerate((*DEPTHWISE, *CONV2D))
        for operands in (0, 1)
        if number % 13 == 0 or case.id == "linear-layer"
    ]
    how = How(str(resolve_target("llvm")), bounds=True)
    outcomes = [*conformance(how, trials, 0, jobs=1, timeout=60)]
    assert len(outcomes) == len(trials)
    assert [outcome for outcome in outcomes if outcome.failure] == []


@pytest.mark.usefixtures("without_torch")
def test_channels_that_fill_no_vector_are_not_read_beyond() -> None:
    """Of three input channels and five outputs vectors have more, which are not in memory."""
    uneven = ConvWorkload.conv2d((2, 3, 9, 21), (5, 3, 3, 3), padding=1)
    integers = ConvWorkload.conv2d((2, 3, 9, 21), (5, 3, 3, 3), padding=1, dtype="int8")
    in_blocks = ConvWorkload.conv2d((2, 2, 9, 21), (4, 2, 3, 3), padding=1, dtype="bfloat16")
    in_blocks = msgspec.structs.replace(in_blocks, out_layout="NCHW4c")
    tried = [(uneven, "winograd"), (in_blocks, "winograd"), (uneven, "direct"), (uneven, "im2win"), (integers, "dot")]
    trials = [Trial(workload, algorithm, None, operands) for workload, algorithm in tried for operands in (0, 1)]
    how = How(str(resolve_target("llvm")), bounds=True)
    outcomes = [*conformance(how, trials, 0, jobs=1, timeout=60)]
    assert len(outcomes) == len(trials)
    assert [outcome for outcome in outcomes if outcome.failure] == []


@pytest.mark.usefixtures("without_torch")
@pytest.mark.parametrize("step", [1, -1])
def test_accesses_past_an_array_are_deadly(step: int) -> None:
    script = (
        "import numpy as np, tvm; from tvm import te\n"
        "from tvmconv.runtime.arrays import operand; from tvmconv.testing.guarded import guarded\n"
        f"step = {step}; x = te.placeholder((10,), 'float32', 'x')\n"
        "y = te.compute((10,), lambda i: x[i + step], name='y')\n"
        "kernel = tvm.compile(tvm.IRModule({'main': te.create_prim_func([x, y])}), 'llvm')['main']\n"
        "arrays = [guarded(np.ones(10, 'float32'), at_end=step > 0) for _ in range(2)]\n"
        "print('before', flush=True); kernel(*(operand(name, array).argument for name, array in zip('xy', arrays)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (-11, "before\n"), done.stderr[-500:]
