"""The README's snippets, in order, as a reader would run them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from tests.shared.network_graph import Graph
from tests.shared.pages import snippets
from tvmconv.cli import main

pytestmark = pytest.mark.usefixtures("without_torch", "one_round")

README = (Path(__file__).parents[2] / "README.md").read_text()
TRIALS = {"n_trial=8": "n_trial=2", "--trials 8": "--trials 2"}
"""The trials that the README asks for, which take long, and those that are enough here."""


def with_few_trials(text: str) -> str:
    for asked, enough in TRIALS.items():
        text = text.replace(asked, enough)
    return text


def test_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pytest.importorskip("torch")
    found = snippets(README)
    assert len(found) == 5
    names: dict[str, object] = {}
    for snippet in found:
        exec(compile(with_few_trials(snippet), "README.md", "exec"), names)


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    graph = Graph((1, 4, 8, 8))
    dense = graph.conv("x", (8, 4, 3, 3))
    second = graph.conv(dense, (8, 8, 1, 1))
    onnx.save(graph.model(graph.conv(second, (8, 1, 3, 3), group=8)), "model.onnx")
    (commands,) = snippets(README, "sh")
    assert len(commands.splitlines()) == 7
    for line in commands.splitlines():
        program, *arguments = shlex.split(with_few_trials(line), comments=True)
        result = CliRunner().invoke(main, arguments)
        assert program == "tvmconv"
        assert result.exit_code == 0, f"{line}\n{result.output}"


def test_its_trials_are_those_that_are_made_fewer() -> None:
    assert all(README.count(asked) == 1 for asked in TRIALS)


def test_it_is_short_and_begins_with_what_to_run() -> None:
    lines = README.splitlines()
    assert len(lines) <= 120
    first_screen = "\n".join(lines[:30])
    assert all(text in first_screen for text in ("    make demo", "    make test", "tvmconv.depthwise("))


def test_make_targets_are_there() -> None:
    makefile = (Path(__file__).parents[2] / "Makefile").read_text()
    targets = set(re.findall(r"^    make (\w+)|`make (\w+)`", README, re.MULTILINE))
    assert ("demo", "") in targets
    for written, quoted in targets:
        assert f"\n{written or quoted}:" in makefile
