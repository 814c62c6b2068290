"""The levels of docs/levels/ without a GPU: numbers of their twins, barriers in an emulator, machine code, and texts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tvm.runtime import Executable

from tests.docs.levels import FILES, FOLDER, by_file, level
from tests.emulated.twins_and_cubins import emulated
from tvmconv.problem import Problem
from tvmconv.targets import has_gpu

__all__ = ["level"]

pytestmark = pytest.mark.usefixtures("without_torch")

EMULATED = (1, 2, 3, 4, 6)
"""The levels whose kernels the emulator of GPUs runs: without tensor intrinsics of TVM, roles, and a folded weight."""

DOCSTRING, CODE = 25, 80
"""The most lines of a level's docstring, and of its code."""


@by_file
def test_numbers(level: Any) -> None:
    level.check_on_cpu()


class Wrong:
    """A kernel that computes one output wrong."""

    def __init__(self, kernel: Executable) -> None:
        self.kernel = kernel

    def __getitem__(self, name: str) -> Any:
        def call(*arguments: Any) -> None:
            self.kernel[name](*arguments)
            output = arguments[-1].numpy()
            output.flat[0] += 1
            arguments[-1].copyfrom(output)

        return call


@pytest.mark.parametrize("path", FILES[:1], ids=lambda path: path.stem)
def test_one_wrong_output_is_noticed(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = level.twin(level.small)
    monkeypatch.setattr(type(level), "twin", lambda self, workload: Wrong(right))
    with pytest.raises(AssertionError, match=r"1 of \d+ elements are wrong"):
        level.check_on_cpu()


@pytest.mark.parametrize("path", [FILES[number - 1] for number in EMULATED], ids=lambda path: path.stem)
def test_threads_wait_for_each_other(level: Any) -> None:
    emulated(level.function(level.small), Problem(level.small))


@by_file
def test_machine_code(level: Any) -> None:
    """The kernel of the whole problem spills no register, and a block's registers are there."""
    for kernel in level.resources():
        assert (kernel.stack_bytes, kernel.spill_store_bytes, kernel.spill_load_bytes) == (0, 0, 0)
        assert kernel.registers <= 255


@pytest.mark.skipif(has_gpu(), reason="tests of GPUs run it there")
def test_script_says_what_it_found() -> None:
    command = [sys.executable, str(FILES[0])]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (line,) = done.stdout.splitlines()
    assert re.fullmatch(
        r"level 1, .*: numbers right on the CPU; \d+ registers, 0 bytes spilled, .*; for the time it needs a GPU", line
    )


@by_file
def test_texts_are_short(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring is not None
    assert docstring.startswith(f"Level {int(path.stem[:2])}: ")
    assert len(docstring.splitlines()) <= DOCSTRING
    code = [line for line in path.read_text().splitlines()[len(docstring.splitlines()) :] if line.strip()]
    assert len(code) <= CODE


def test_page_lists_the_levels() -> None:
    page = (FOLDER / "README.md").read_text()
    assert re.findall(r"^\| \[(\w+\.py)\]\(\1\) \|", page, re.MULTILINE) == [path.name for path in FILES]
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert link.startswith("https://") or (FOLDER / link).exists(), link
