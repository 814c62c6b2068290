"""The parts that depend on the operating system: who may write a folder, and how processes end."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Linux's prctl operation that sets the signal a process gets when its parent dies."""


def is_safe(folder: Path) -> bool:
    """Return whether nobody but this user and the administrator can have written a folder's files.

    Where the operating system has no user ids, as on Windows, a user's folders are taken to be private.
    """
    if not hasattr(os, "geteuid"):
        return True
    status = folder.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def follow_parent() -> None:
    """Leave Ctrl-C to the process that began this one; on Linux, also end when that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def begin_group() -> None:
    """Let this process lead a process group, which `kill_group` kills, where the operating system has such."""
    if hasattr(os, "setsid"):
        os.setsid()


def kill_group(leader: int) -> None:
    """Kill the processes of the group that a process leads, such as a compiler; do nothing where it leads none."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):  # macOS does not permit it of a process that has ended
            os.killpg(leader, signal.SIGKILL)
