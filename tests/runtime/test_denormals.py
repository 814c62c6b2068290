"""Denormal numbers, and the switch that makes zeros of them in all threads of a kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import tvmconv
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import denormals

BEFORE = """
import numpy as np, threading, tvmconv
x, w = np.full((1, 64, 64, 64), 1e-39, "float32"), np.ones((64, 1, 1, 1), "float32")
operator = tvmconv.compile(tvmconv.ConvWorkload.depthwise(x.shape, w.shape))
assert operator.selection.config.parallel
counts = []
def count():
    counts.append(int(np.count_nonzero(operator(x, w).view("uint32"))))
"""

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None"
"""TVM would import torch, which takes 2 s."""

SWITCHED = """
count()
tvmconv.set_flush_denormal(True)
count()
thread = threading.Thread(target=count)
thread.start()
thread.join()
tvmconv.set_flush_denormal(False)
count()
print(*counts)
"""

BY_TORCH = f"""
import torch
torch.set_flush_denormal(True)
{BEFORE}
count()
print(*counts)
"""


def counted(code: str) -> list[int]:
    """Return the results that are not zero in each call of a kernel of two threads, in a new process."""
    environment = {**os.environ, "TVM_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return [int(word) for word in done.stdout.split()]


def test_all_threads_of_a_kernel_are_switched() -> None:
    """Also where they have computed before, and in a thread that is started later; and back."""
    everything = 64**3
    assert counted(WITHOUT_TORCH + BEFORE + SWITCHED) == [everything, 0, 0, everything]


def test_torchs_switch_reaches_threads_that_are_started_later() -> None:
    pytest.importorskip("torch")
    assert counted(BY_TORCH) == [0]


def test_what_cannot_be_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgumentError, match="flush is 1; expected True or False"):
        tvmconv.set_flush_denormal(1)  # type: ignore[arg-type]
    monkeypatch.setattr(denormals, "host_arch", lambda: "riscv64")
    with pytest.raises(InvalidArgumentError, match="a processor of x86_64 or aarch64; this is riscv64"):
        tvmconv.set_flush_denormal(True)


@pytest.mark.parametrize("arch", denormals.REGISTERS)
def test_the_switch_is_the_processors_own_instruction(arch: str) -> None:
    """The code is compiled for processors of other machines, too."""
    function = denormals.function_of(denormals.REGISTERS[arch])
    assembly = denormals.compiled(function, {"kind": "llvm", "mtriple": f"{arch}-linux-gnu"}).mod.inspect_source("asm")
    assert {"x86_64": "ldmxcsr", "aarch64": "FPCR"}[arch].lower() in assembly.lower()
