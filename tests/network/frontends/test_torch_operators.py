"""A part of torch's samples, of which `torch_operators.py` runs all, and their treatment of bad ones."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.shared.sparing import every

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="torch's samples need it")

from tests import torch_operators, torch_samples  # noqa: E402
from tests.torch_operators import CRASH, HANG, page, read, run_all  # noqa: E402
from tests.torch_samples import (  # noqa: E402
    EXCLUDED,
    REFUSED,
    RIGHT,
    WRONG,
    Call,
    Outcome,
    are_right,
    classify,
    difference,
    operators,
)

FLOAT32 = (
    "nn.functional.avg_pool3d", "nn.functional.conv2d", "nn.functional.conv_transpose3d", "nn.functional.grid_sample",
    "nn.functional.interpolate.bilinear", "nn.functional.interpolate.nearest", "nn.functional.max_pool2d",
    "any", "_upsample_bilinear2d_aa", "select", "take", "trapezoid",
)  # fmt: skip
"""Operators that Relax's importer misreads, or that convolutional networks are made of."""

OTHERS = (
    ("add", "bool"), ("clamp", "int64"), ("div.floor_rounding", "int64"), ("nn.functional.conv2d", "bfloat16"),
    ("nn.functional.linear", "float16"), ("nn.functional.gelu", "bfloat16"), ("sort", "bfloat16"), ("sum", "float16"),
    ("true_divide", "int64"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "dtype"), every(3, [*((name, "float32") for name in FLOAT32), *OTHERS]))
def test_samples(name: str, dtype: str) -> None:
    """The first sample and the last of each operator are right or refused."""
    calls = list(torch_samples.samples(name, dtype))
    two = calls[0], calls[-1]
    assert are_right(two), [classify(call) for call in two]


@pytest.mark.parametrize(
    ("name", "number", "kind"),
    [("eye", 11, RIGHT), ("scatter", 21, REFUSED), ("std", 1, RIGHT), ("take", 6, RIGHT), ("var_mean", 13, RIGHT)],
)
def test_samples_that_are_no_first_ones(name: str, number: int, kind: str) -> None:
    """Results and operands without elements, tensors without axes, variances less a correction, those of columns."""
    (call,) = itertools.islice(torch_samples.samples(name, "float32"), number, number + 1)
    outcome = classify(call)
    assert outcome.kind == kind, outcome


def test_what_is_refused_is_named() -> None:
    outcome = classify(next(torch_samples.samples("fft.fft2", "float32")))
    assert outcome.kind == REFUSED
    assert "aten._fft" in outcome.message


def test_operators_that_are_left_out_exist() -> None:
    assert set(EXCLUDED) <= set(operators())


def test_differences_are_found() -> None:
    y = torch.arange(6.0).reshape(2, 3)
    one_off = y.clone()
    one_off[1, 2] += 0.01
    assert difference([y], [y], [y.double()]) == ""
    assert difference([one_off], [y], [y.double()]) == "output 0[1, 2] is 5.01..., not 5.0; 1 of 6 elements".replace(
        "5.01...", repr(one_off[1, 2].item())
    )
    assert difference([one_off], [y], [one_off.double()]) == ""
    assert "float16" in difference([y.half()], [y], [y.double()])
    assert "(3, 2)" in difference([y.T], [y], [y.double()])
    assert difference([y, y], [y], [y]) == "2 outputs, not 1"
    gap = torch.full_like(y, float("nan"))
    assert difference([gap], [gap], [gap.double()]) == ""
    assert difference([y], [gap], [gap.double()]) != ""


def call(function: Callable[..., torch.Tensor]) -> Call:
    return Call("made", function, SimpleNamespace(input=torch.ones(2), args=(), kwargs={}))


def crash(x: torch.Tensor) -> torch.Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def hang(x: torch.Tensor) -> torch.Tensor:
    time.sleep(600)
    return x


def test_several_at_once_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once some samples are right, the next are one model, until one of them is not right."""
    alone: list[Call] = []

    def noted(made: Call) -> Outcome:
        alone.append(made)
        return classify(made)

    monkeypatch.setattr(torch_samples, "classify", noted)
    calls = list(map(call, [torch.neg, torch.abs, torch.exp, torch.neg, torch.fft.fft, torch.neg, torch.neg]))
    kinds = [outcome.kind for outcome in torch_samples.outcomes(calls)]
    assert kinds == [RIGHT, RIGHT, RIGHT, RIGHT, REFUSED, RIGHT, RIGHT]
    assert alone == [calls[0], *calls[3:7]]


def test_one_that_is_wrong_among_several_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each result is 1 here."""
    ones = [torch.ones(2)]
    monkeypatch.setattr(torch_samples, "_built_and_run", lambda model, tensors: ones * len(tensors))
    calls = list(map(call, [torch.abs, torch.abs, torch.neg]))
    assert torch_samples.are_right(calls[:2])
    assert not torch_samples.are_right(calls[1:])
    assert [outcome.kind for outcome in torch_samples.outcomes(calls)] == [RIGHT, RIGHT, WRONG]


def test_workers_that_end_cost_one_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    def samples(name: str, dtype: str) -> Iterator[Call]:
        return map(call, {"bad": [crash, torch.neg, hang, torch.neg], "good": [torch.neg]}[name])

    monkeypatch.setattr(torch_samples, "samples", samples)
    monkeypatch.setattr(torch_samples, "classify", lambda made: made(torch.ones(2)) is None or Outcome(RIGHT))
    done = dict(run_all([("bad", "float32"), ("good", "float32")], jobs=2, last=9, seconds=3))
    assert [outcome.kind for outcome in done["bad", "float32"]] == [CRASH, RIGHT, HANG, RIGHT]
    assert done["good", "float32"] == [Outcome(RIGHT)]


def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The command goes on after samples that are done, writes new ones, and fails for a wrong one."""
    monkeypatch.setattr(torch_operators, "warm_up", lambda: None)
    monkeypatch.setattr(torch_samples, "classify", lambda call: Outcome(WRONG, "by 1"))
    results, markdown = tmp_path / "results.jsonl", tmp_path / "page.md"
    done = {"operator": "neg", "dtype": "float32", "outcomes": [[RIGHT, ""]]}
    results.write_text(json.dumps(done) + '\n{"operator": "abs", "dty')
    command = ["neg", "abs", "--dtype", "float32", "--samples", "1", "--jobs", "1"]
    assert torch_operators.main([*command, "--results", str(results), "--markdown", str(markdown)])
    assert capsys.readouterr().out == (
        "abs float32 sample 0: wrong: by 1\n1 right, 0 refused, 1 wrong, 0 raw error, 0 crash, 0 hang\n"
    )
    assert read(results) == {("neg", "float32"): [Outcome(RIGHT)], ("abs", "float32"): [Outcome(WRONG, "by 1")]}
    assert "| abs | 0 of 1, **1 wrong** | - | - | - | - |  |\n" in markdown.read_text()


def test_page() -> None:
    refusal = "the model cannot be imported: aten.x (node 'x'): Relax has it not. What would help: write it without"
    done = {
        ("a", "float32"): [Outcome(RIGHT), Outcome(REFUSED, refusal)],
        ("a", "bool"): [Outcome(RIGHT)],
        ("b", "float32"): [Outcome(REFUSED, refusal)],
    }
    assert "the first 2 of each operator and dtype" in page(done, 2).replace("\n", " ")
    text = page(done, sys.maxsize)
    assert "the first" not in text
    assert "2 are right, 2 are refused" in text.replace("\n", " ")
    assert "| a | 1 of 2 | - | - | - | 1 | aten.x: Relax has it not |\n" in text
    assert text.endswith("All samples are refused of `b`.\n")
    assert list(itertools.islice((line for line in text.splitlines() if line.startswith("| b")), 1)) == []
