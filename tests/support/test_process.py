"""Functions in child processes: answers, time limits, deaths, and the end of all that they have started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tvmconv.support.process import Process


def started(folder: str) -> Iterator[int]:
    """Yield the process id of a child, then wait for ever."""
    yield subprocess.Popen(["sleep", "600"]).pid
    Path(folder, "waits").touch()
    time.sleep(600)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def has_ended(handle: int) -> bool:
    """Return whether a process, of which this is a file descriptor, ends within ten seconds."""
    end = time.monotonic() + 10
    while time.monotonic() < end:
        try:
            signal.pidfd_send_signal(handle, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_function_answers(context: str) -> None:
    with Process(max, 3, 5, context=context) as process:
        assert process.answer(60) == 5
        assert process.join(60)
        assert not process.alive


def test_it_is_killed_with_what_it_started(tmp_path: Path) -> None:
    with Process(started, str(tmp_path), context="fork") as process:
        handle = os.pidfd_open(process.answer(60))
        with pytest.raises(TimeoutError, match=r"more than 0\.2 s"):
            process.answer(0.2)
    assert has_ended(handle)
    os.close(handle)
    assert not process.alive
    process.kill()  # once more does nothing


def test_a_death_is_told() -> None:
    with (
        Process(die, context="fork") as process,
        pytest.raises(ChildProcessError, match="exit code -9"),
    ):
        process.answer(60)


ORPHAN = """
import os, sys, time
from tvmconv.support.process import Process
process = Process(time.sleep, 600, context="fork")
print(process._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def test_it_ends_with_the_process_that_began_it() -> None:
    parent = subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.wait()
    end = time.monotonic() + 10
    while _is_running(pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    """Return whether a process runs: one that has ended stays in /proc until its new parent asks for its status."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
