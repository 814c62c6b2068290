"""The commands of pages that a release runs: which are run, which are left out, and what is told of a failure."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.page_commands import LEFT_OUT, PAGES, Command, commands, run

COMMANDS = list(commands())


def test_commands_of_all_pages_are_found() -> None:
    assert {command.page for command in COMMANDS} == {*PAGES}
    assert len(COMMANDS) > 70


def test_each_reason_to_leave_out_is_needed() -> None:
    assert {command.why_not for command in COMMANDS} == {*LEFT_OUT.values(), None}


@pytest.mark.parametrize(
    "text",
    [
        "tvmconv tasks model.onnx",
        "tvmconv quantize squeezenet.onnx --data samples.npz -o quantized.onnx",
        "tvmconv tune model.onnx -o tuned.jsonl --trials 400 --target cuda --dry-run",
        "tvmconv log merge A B -o C",
        "python examples/convolution_template.py",
    ],
)
def test_what_a_cpu_runs_in_a_minute_is_run(text: str) -> None:
    assert None in {command.why_not for command in COMMANDS if command.text == text}


def test_failures_are_told(tmp_path: Path) -> None:
    assert run(Command("page", "python -c 'print(1)' > one.txt"), tmp_path) is None
    assert (tmp_path / "one.txt").read_text() == "1\n"
    failure = run(Command("page", "tvmconv log best missing.jsonl"), tmp_path)
    assert failure is not None
    assert re.match(r"exit code 2: .*missing\.jsonl", failure, re.DOTALL)
