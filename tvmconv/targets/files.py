"""Files that appear whole."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole, also where several processes write it, and where it takes another's place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        Path(scratch, path.name).write_bytes(content)
        Path(scratch, path.name).replace(path)
