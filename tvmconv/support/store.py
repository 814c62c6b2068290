"""A folder of files by keys, shared by processes, with a limit on its size; and files that appear whole."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from threading import Lock

from . import system

logger = logging.getLogger(__name__)

NAMES = re.compile(r"[0-9a-f]{64}\.\w+|\.[0-9a-f]{16}\.part")
"""The names of a store's files: keys, and files that are being written. Other files in its folder are left alone."""

LIMIT = 2 * 2**30
"""The default limit of a store, in bytes."""

BLOCK = 4096
"""The unit in which file systems allocate files, in bytes."""

UNUSABLE = (OSError, RuntimeError)
"""The errors of a folder that cannot be used: `Path.home` raises a RuntimeError where the user has none."""


def default_folder() -> Path:
    """Return the folder that `TVMCONV_CACHE_DIR` names, by default `tvmconv` in the user's folder for caches."""
    if named := os.environ.get("TVMCONV_CACHE_DIR"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tvmconv"


def user_file(name: str) -> Path | None:
    """Return the path of a file beside the content of a `Store`, which leaves it alone; None where nothing is kept."""
    with suppress(RuntimeError):  # the user has no folder
        folder = default_folder()
        return None if folder == Path(os.devnull) else folder / name
    return None


class Store:
    """Contents by keys on disk, in `default_folder()`; once they take more than `limit` bytes, the oldest used go.

    A key is a SHA-256 in hexadecimal digits, a dot and a word: all that decides the content is in the digest.
    Contents may be code: a folder that others than its owner can write to, or that belongs to another user, is not
    read. Each file ends in a digest of its content, by which one that a full disk or a power cut has damaged counts as
    missing. Processes may share a folder: a file appears whole, and each process that writes may exceed the limit by a
    sixteenth until it counts again. A folder that cannot be used, or a full disk, is told once for each kind of error,
    as a warning, and nothing is kept. `TVMCONV_CACHE_DIR=/dev/null` keeps nothing and warns of nothing.
    """

    def __init__(self, limit: int = LIMIT) -> None:
        self.limit = limit
        self._lock = Lock()
        self._uncounted: dict[Path, int] = {}
        """The bytes that may still be written to each folder before its files are counted again."""
        self._told: set[str] = set()

    def get(self, key: str) -> bytes | None:
        """Return the content of a key, which is marked as used now; None where it is missing or damaged."""
        try:
            if (folder := self._folder()) is None:
                return None
            path = folder / key
            whole = path.read_bytes()
        except FileNotFoundError:
            return None
        except UNUSABLE as error:
            self._tell(error)
            return None
        content, digest = whole[: -sha256().digest_size], whole[-sha256().digest_size :]
        if digest != sha256(content).digest():
            return None
        with suppress(OSError):  # a folder that can only be read
            os.utime(path)
        return content

    def put(self, key: str, content: bytes) -> None:
        """Keep a content by a key."""
        try:
            folder = default_folder()
            if not folder.exists():
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._folder() is not None:
                write_whole(folder / key, content + sha256(content).digest())
                self._count(folder, _on_disk(len(content)))
        except UNUSABLE as error:
            self._tell(error)

    def _folder(self) -> Path | None:
        """Return the folder; None where it is /dev/null. Raise `OSError` where it cannot be trusted."""
        if (folder := default_folder()) == Path(os.devnull):
            return None
        if not system.is_safe(folder):
            raise PermissionError(f"others can write to {folder}: empty it, and `chmod 700` it as its owner")
        return folder

    def _count(self, folder: Path, written: int) -> None:
        """Subtract bytes that were written from those that may still be, and remove the oldest files beyond the limit.

        Removed are files down to seven eighths of the limit, so that this is rare.
        """
        with self._lock:
            self._uncounted[folder] = self._uncounted.get(folder, 0) - written
            if self._uncounted[folder] >= 0:
                return
            found = []
            for entry in os.scandir(folder):
                with suppress(OSError):  # another process has removed it
                    if not NAMES.fullmatch(entry.name):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    found.append((status.st_mtime, _on_disk(status.st_size), entry.path))
            total = sum(size for _, size, _ in found)
            if total > self.limit:
                for _, size, path in sorted(found):
                    if total <= self.limit * 7 // 8:
                        break
                    with suppress(OSError):
                        Path(path).unlink()
                    total -= size
            self._uncounted[folder] = min(self.limit - total, self.limit // 16)

    def _tell(self, error: Exception) -> None:
        """Warn of an error that keeps the store from working, once for each kind."""
        kind = str(getattr(error, "errno", None) or error)
        if kind not in self._told:
            self._told.add(kind)
            logger.warning("compiled code is not kept on disk: %s", error)


store = Store()
"""The store of compiled code and of choices of configurations."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole, also where several processes write it, and where it replaces another."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{token_hex(8)}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _on_disk(size: int) -> int:
    """Return the bytes that a file of a size takes on disk."""
    return -(-size // BLOCK) * BLOCK
