"""Kernels for another kind of CPU, run in QEMU's emulation of one."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from tvm.runtime import Executable

from tvmconv.lowering import KERNEL_NAME
from tvmconv.problem.errors import NoDeviceError
from tvmconv.runtime.storage import export
from tvmconv.targets.toolchain import compiler_package, find_emulator

DRIVER = Path(__file__).with_name("emulated.c")
"""The program that calls a kernel."""

SYMBOL = f"__tvm_ffi_{KERNEL_NAME}"
"""The kernel's name in its library."""


def require_emulator(triple: str) -> str:
    """Return QEMU's command for a triple; `NoDeviceError` where QEMU or the compiler for its programs is missing."""
    emulator, missing = find_emulator(triple), []
    if emulator is None:
        missing.append("qemu-user")
    if shutil.which(f"{triple}-gcc") is None:
        missing.append(compiler_package(triple))
    if emulator is None or missing:
        raise NoDeviceError(f"running code for {triple} here needs Debian's packages {', '.join(missing)}")
    return emulator


def emulate(
    executable: Executable, target: str, triple: str, operands: Mapping[str, np.ndarray[Any, Any]]
) -> np.ndarray[Any, Any]:
    """Return the output, the last of the operands, of a kernel that was built for a target as JSON.

    A kernel that crashes, or says that its operands are wrong, is a `RuntimeError`.
    """
    emulator = require_emulator(triple)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, program = folder / "kernel.so", folder / "run"
        export(executable, library, target)
        _compile(triple, program)
        command = [emulator, "-L", system_root(triple), str(program), str(library), SYMBOL]
        for place, array in enumerate(operands.values()):
            file, dtype = folder / f"{place}.bin", tvm_ffi.dtype(str(array.dtype))
            array.tofile(file)
            command += map(str, (file, int(dtype.type_code), dtype.bits, array.ndim, *array.shape))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the kernel ended with {done.returncode}: {done.stderr.strip()}")
        output: np.ndarray[Any, Any] = np.fromfile(file, array.dtype).reshape(array.shape)
        return output


@cache
def system_root(triple: str) -> str:
    """Return the folder with the loader and the C library of a triple, where its compiler has them."""
    asked = subprocess.run([f"{triple}-gcc", "-print-file-name=libc.so.6"], capture_output=True, text=True, check=True)
    return str(Path(asked.stdout.strip()).resolve().parents[1])


def _compile(triple: str, program: Path) -> None:
    include = [f"-I{folder}" for folder in tvm_ffi.libinfo.include_paths()]
    # Kernels call functions of libm, which a process with TVM in it has loaded.
    options = ["-O1", "-rdynamic", "-Wl,--no-as-needed", "-lm", "-ldl"]
    subprocess.run([f"{triple}-gcc", *include, str(DRIVER), "-o", str(program), *options], check=True)
