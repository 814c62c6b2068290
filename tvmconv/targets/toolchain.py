"""Code for another kind of CPU than this machine's: the compiler that links it, and the emulator that runs it."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec

from .devices import architecture, host_arch


def cross_triple(target: str) -> str | None:
    """Return the triple of a target as JSON, in the form of Debian's packages; None where its host code is for here.

    A GPU's target names in its "host" what its host code is for.
    """
    config = json.loads(target)
    triple = (config.get("host") or config).get("mtriple")
    if triple is None or architecture(triple) == host_arch():
        return None
    cpu, *rest = triple.split("-")
    return "-".join((architecture(cpu), *rest[-2:]))  # "aarch64-unknown-linux-gnu" names a vendor, too


def find_cross_compiler(triple: str) -> tuple[str, ...] | None:
    """Return the command of a compiler that links libraries for a triple: GCC's, or the package ziglang's."""
    if shutil.which(f"{triple}-gcc") is not None:
        return (f"{triple}-gcc",)
    return (sys.executable, "-m", "ziglang", "cc", "-target", triple) if find_spec("ziglang") else None


def compiler_package(triple: str) -> str:
    """Return the name of Debian's package with GCC for a triple, such as "gcc-x86-64-linux-gnu"."""
    return f"gcc-{triple.replace('_', '-')}"


def find_emulator(triple: str) -> str | None:
    """Return QEMU's command that runs programs for a triple."""
    return shutil.which(f"qemu-{triple.partition('-')[0]}")
