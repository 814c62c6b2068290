"""A digest of what makes code: the sources of this library, and the versions of the packages that it calls.

What is kept on disk by what it was made from is found again only where all of this is the same.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from hashlib import sha256
from pathlib import Path

logger = logging.getLogger(__name__)

BEGAN = time.time()
"""The time at which this process loaded the first of the sources, in seconds since 1970."""


@cache
def digest() -> str | None:
    """Return the digest; None where a source has changed since this process began, which may run it as it was."""
    import tvm
    import tvm_ffi

    package = Path(__file__).parents[1]
    # `schedules` is a link to a folder beside the package where that is not installed.
    rooms = package, package / "schedules"
    files = sorted({path for room in rooms for kind in ("py", "cuh") for path in room.rglob(f"*.{kind}")})
    if changed := [str(file) for file in files if file.stat().st_mtime >= BEGAN]:
        logger.warning("changed since this process began: %s; it keeps no kernels, and finds none", ", ".join(changed))
        return None
    found = sha256(f"{tvm.__version__} {tvm_ffi.__version__}".encode())
    for file in files:
        content = file.read_bytes()
        found.update(f"\n{file.relative_to(package)} {len(content)}\n".encode() + content)
    return found.hexdigest()
