"""The parts that depend on the operating system: folders, the end of processes, processors, and protected memory."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
"""Linux's prctl operation that sets the signal a process gets when its parent dies."""

PROT_NONE = 0
"""The protection of memory that nothing may touch, for mprotect."""


def is_safe(folder: Path) -> bool:
    """Return whether nobody but this user and the administrator can have written a folder's files.

    Where the operating system has no user ids, as on Windows, a user's folders are taken to be private.
    """
    if not hasattr(os, "geteuid"):
        return True
    status = folder.stat()
    return status.st_uid in (0, os.geteuid()) and not status.st_mode & 0o022


def follow_parent() -> None:
    """Leave Ctrl-C to the process that began this one; on Linux, also end with the thread that began it."""
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


def processors() -> list[int]:
    """Return the numbers of the processors that this process may run on: all where the system has no affinity masks."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def run_on(numbers: Iterable[int]) -> None:
    """Let this thread, and those that it begins, run on these processors alone, where the system has affinity masks."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, numbers)


def forbid(address: int, nbytes: int) -> None:
    """Let code die that touches some pages of memory; raise `OSError` where the system does not allow it."""
    if ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), nbytes, PROT_NONE):
        raise OSError(ctypes.get_errno(), "mprotect")


def give_back_free_memory() -> None:
    """Let glibc give memory that is free, but resident, back to Linux."""
    ctypes.CDLL(None).malloc_trim(0)
