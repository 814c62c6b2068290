"""The levels of docs/levels/ without a GPU: numbers of twins, barriers in an emulator, machine code, and texts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tvm.runtime import Executable

from tests.docs.levels import FILES, FOLDER, by_file, level
from tests.emulated.gpu import Emulator
from tests.emulated.machine import VECTORS
from tests.emulated.memory import VECTOR, HazardError, Pointer
from tests.emulated.twins_and_cubins import device_kernels
from tvmconv.targets import has_gpu
from tvmconv.testing import check_result

__all__ = ["level"]

pytestmark = pytest.mark.usefixtures("without_torch")

EMULATED = FILES[:6]
"""The levels whose kernels the emulator of GPUs runs: without roles, and without a folded weight."""

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


class LevelEmulator(Emulator):
    """An emulator with the function of level 5."""

    def function(self, name: str) -> Callable[..., Any]:
        if "plain_product" not in name:
            return super().function(name)
        return partial(self.multiply_plain, *map(int, re.findall(r"\d+", name)))

    def multiply_plain(
        self, tiles_m: int, tiles_n: int, words: int, sums: Pointer, rows: Pointer, columns: Pointer
    ) -> None:
        """Wait for all threads, add a product of rows that lie so many words apart, and wait again."""
        pixels = np.arange(2 * tiles_m) * 8
        channels = (np.arange(tiles_n)[:, None] * 8 + np.arange(2)).reshape(-1)
        accesses = []
        for pointer, row in ((rows, pixels), (columns, channels)):
            offset = (row[:, None] * 4 * words + np.arange(VECTORS) * VECTOR).reshape(1, -1)
            accesses.append((pointer, pointer.address[:, :1] + offset))
        self.barrier()
        self.add(sums, [tiles_m, tiles_n], accesses)
        self.barrier()


@pytest.mark.parametrize("path", EMULATED, ids=lambda path: path.stem)
def test_threads_wait_for_each_other(level: Any) -> None:
    """What lowering makes for a GPU is right, too, and no access to shared memory passes another."""
    operands = level.operands(level.small)
    (kernel,) = device_kernels(level.function(level.small))
    LevelEmulator(kernel, operands)
    check_result(level.small, operands, operands["output"])


@pytest.mark.parametrize("path", EMULATED[4:5], ids=lambda path: path.stem)
def test_missing_barriers_are_noticed(level: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LevelEmulator, "barrier", lambda self: None)
    (kernel,) = device_kernels(level.function(level.small))
    with pytest.raises(HazardError):
        LevelEmulator(kernel, level.operands(level.small))


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


@pytest.mark.parametrize("path", FILES[1:2], ids=lambda path: path.stem)
def test_line_with_a_time(level: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU, which is pretended here, the time is compared with that of level 1."""
    monkeypatch.setattr(import_module("common"), "has_gpu", lambda: True)
    monkeypatch.setattr(type(level), "seconds", lambda self: 4e-3 / self.number)
    level.run()
    said = "level 2, register tiles: 2000.0 us, 3699 GFLOP/s, 2.00 times as fast as level 1\n"
    assert capsys.readouterr().out == said


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
    for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page):
        assert link.startswith("https://") or (FOLDER / link).exists(), link
