"""A digest of what makes code: sources of this library that kernels depend on, the versions of TVM's packages, and the
user's rates of machines.

What the store keeps by a digest of this is found again only where all of it is the same.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from hashlib import sha256
from pathlib import Path

from tvmconv.support import store

logger = logging.getLogger(__name__)

BEGAN = time.time()
"""The time at which this process loaded the first of the sources, in seconds since 1970."""


ROOMS = ("problem", "targets", "compute", "schedules", "dispatch", "lowering", "network/passes")
"""The folders of the package whose files decide a kernel's code and the choice of its configuration."""

RATES, CPU_RATES = "rates.json", "rates-cpu.json"
"""The names of the user's files with the rates of GPUs and of CPUs, which decide configurations too."""

PACKAGE = Path(__file__).parents[1]


def files(package: Path) -> list[Path]:
    """Return the sources in the `ROOMS` of a package, in Python, CUDA and JSON, sorted."""
    # `schedules` is a link to a folder beside the package where that is not installed.
    return sorted(
        file for room in ROOMS for kind in ("*.py", "*.cuh", "*.json") for file in (package / room).rglob(kind)
    )


@cache
def digest(package: Path = PACKAGE) -> str | None:
    """Return the digest; None where a source has changed since this process began, which may run it as it was."""
    import tvm
    import tvm_ffi

    sources = files(package)
    if changed := [str(file) for file in sources if file.stat().st_mtime >= BEGAN]:
        logger.warning(
            "files of tvmconv changed since this process began, so no compiled code is kept: %s", ", ".join(changed)
        )
        return None
    total = sha256(f"{tvm.__version__} {tvm_ffi.__version__}".encode())
    for file in sources:
        content = file.read_bytes()
        total.update(f"\n{file.relative_to(package)} {len(content)}\n".encode() + content)
    for rates in map(store.user_file, (RATES, CPU_RATES)):
        if rates is not None and rates.is_file():
            total.update(rates.read_bytes())
    return total.hexdigest()
