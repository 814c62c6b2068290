"""Denormal numbers, as docs/networks.md says how to be rid of them."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

DENORMALS = """
import numpy as np, torch
torch.set_flush_denormal(True)
import tvmconv
x, w = np.full((1, 64, 64, 64), 1e-39, "float32"), np.ones((64, 1, 1, 1), "float32")
operator = tvmconv.compile(tvmconv.ConvWorkload.depthwise(x.shape, w.shape))
print(operator.selection.config.parallel, int(np.count_nonzero(operator(x, w).view("uint32"))))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the switch is the processor's")
def test_all_threads_of_a_kernel_flush_denormals_as_the_one_that_starts_them() -> None:
    pytest.importorskip("torch")
    environment = {**os.environ, "TVM_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", DENORMALS], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0"]
