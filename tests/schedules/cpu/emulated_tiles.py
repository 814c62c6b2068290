"""Kernels for AMX on any x86 with AVX2: an emulator of the instructions, and a target without others of AVX-512."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import tvm

from tvmconv.schedules.cpu.amx import code as amx_code
from tvmconv.targets import resolve_target
from tvmconv.targets.devices import host_arch
from tvmconv.targets.processors import has_tiles

SOURCE = Path(__file__).with_suffix(".c")

FEATURES = ("+amx-tile", "+amx-int8", "+amx-bf16")

TILES = resolve_target({"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": "x86-64-v3", "mattr": list(FEATURES)})
"""A CPU with AVX2 and AMX, which nobody makes."""

GRANTED = f"define linkonce_odr hidden i32 @{amx_code.REQUEST}() nounwind {{\n  ret i32 0\n}}\n"
"""The function that runs instead of the one that asks Linux for tiles."""

needs_x86 = pytest.mark.skipif(
    host_arch() != "x86_64" or not tvm.target.codegen.target_has_features("avx2", resolve_target("llvm")),
    reason="the emulated kernels are for x86 with AVX2",
)


class Counts(NamedTuple):
    """The instructions that were emulated."""

    configurations: int
    loads: int
    stores: int
    products: int
    zeros: int
    releases: int


class Emulator:
    """The emulator; where the CPU has tiles itself there is none, and nothing is counted."""

    def __init__(self, library: ctypes.CDLL | None) -> None:
        self._library = library

    def counts(self) -> Counts | None:
        """Return how many instructions there were since the last call."""
        if self._library is None:
            return None
        counts = (ctypes.c_long * len(Counts._fields))()
        self._library.take_counts(counts)
        return Counts(*counts)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Emulate the instructions of AMX in this process, and do not ask Linux for tiles, which it would refuse."""
        if self._library is None:
            yield
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(amx_code, "PERMISSION", GRANTED)
            self._library.emulate()
            try:
                yield
            finally:
                self._library.stop()


def compiled_emulator(folder: Path) -> Emulator:
    """Compile the emulator into a folder, unless the CPU has tiles."""
    if has_tiles():
        return Emulator(None)
    path = folder / "emulated_tiles.so"
    command = ["cc", "-O3", "-mavx2", "-mfma", "-ffp-contract=off", "-Wall", "-Werror", "-shared", "-fPIC"]
    subprocess.run([*command, "-o", str(path), str(SOURCE)], check=True)
    return Emulator(ctypes.CDLL(str(path)))
