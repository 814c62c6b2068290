"""The steadiness of a machine while kernels are measured: its clock, and a kernel that is timed again and again."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from threading import Thread
from typing import Protocol

BUSY = 10
"""The least percentage of time in which other programs use a machine that is too busy to be measured."""

FALL = 0.95
"""The least that the lowest clock may be, as a share of the highest one that was read."""

USUAL = 0.75
"""The least clock under load, as a share of the highest one that the GPU has: small boards with a limit on power do not
reach that for long."""


@dataclass(frozen=True)
class Reading:
    """A measurement of the kernel that tells how steady a machine is."""

    seconds: float
    """The time of a call."""
    mhz: int
    """The clock at its end; 0 where it is not known."""


class Gauge(Protocol):
    """An object that tells the state of a machine."""

    drift: float
    """The most that the longest time of a kernel may be on such a machine, as a multiple of its shortest one."""
    mhz: int
    """The clock; 0 where it is not known."""
    highest: int
    """The highest clock that the machine has, in MHz; 0 where it is not known."""
    use: int
    """The percentage of time in which other programs used the machine at first."""

    def close(self) -> None:
        """End what reads the state."""


def disturbance(readings: Sequence[Reading], gauge: Gauge) -> str | None:
    """Return what disturbed measurements, by readings before, between and after them; None where nothing did."""
    shortest, longest = (choice(reading.seconds for reading in readings) for choice in (min, max))
    if longest > gauge.drift * shortest:
        return f"the same kernel took {1e6 * shortest:.4g} µs and {1e6 * longest:.4g} µs"
    clocks = [reading.mhz for reading in readings if reading.mhz]
    if clocks and min(clocks) < FALL * max(clocks):
        return f"the clock was between {min(clocks)} and {max(clocks)} MHz"
    if clocks and median(clocks) < USUAL * gauge.highest:
        return f"the clock was {median(clocks):.0f} MHz, and the GPU has up to {gauge.highest} MHz"
    return None


class Clock:
    """The clock of the first GPU in MHz, which a process reads five times a second; 0 where it is not known."""

    FIELDS = "clocks.sm,clocks.max.sm,utilization.gpu"
    drift = 1.05

    def __init__(self) -> None:
        self.mhz = 0
        self._process: subprocess.Popen[str] | None = None
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").partition(",")[0] or "0"
        self._command = ["nvidia-smi", f"--query-gpu={self.FIELDS}", "--format=csv,noheader,nounits", "-i", visible]
        self.highest, self.use = 0, 0
        if shutil.which("nvidia-smi") is not None:
            first = subprocess.run(self._command, capture_output=True, text=True, check=False).stdout
            self.mhz, self.highest, self.use = numbers(first)
            self._process = subprocess.Popen([*self._command, "-lms", "200"], stdout=subprocess.PIPE, text=True)
            Thread(target=self._follow, args=(self._process,), daemon=True).start()

    def _follow(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.mhz = numbers(line)[0]

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()


class Processors:
    """The cores of this machine, by the times that Linux counts; of their clock nothing is known.

    On a virtual machine others use the same cores, and the fastest of three calls of a kernel takes up to 1.2 times as
    long as at another time.
    """

    drift, mhz, highest = 1.25, 0, 0

    def __init__(self, seconds: float = 1.0) -> None:
        used, total = _times()
        time.sleep(seconds)
        used, total = (after - before for after, before in zip(_times(), (used, total), strict=True))
        self.use = max(round(100 * used / total), 0) if total else 0

    def close(self) -> None:
        """Do nothing: no process reads the times."""


def _times() -> tuple[float, float]:
    """Return the seconds in which other programs used cores, and the seconds of all cores; see proc(5).

    Threads of libraries that this program has loaded may wait for work without sleeping.
    """
    try:
        words = Path("/proc/stat").read_text().partition("\n")[0].split()
    except OSError:
        return 0, 0
    ticks = [int(word) for word in words[1:9]]
    idle, waiting_for_disk = ticks[3:5]
    process_seconds = time.process_time()
    second = os.sysconf("SC_CLK_TCK")
    return (sum(ticks) - idle - waiting_for_disk) / second - process_seconds, sum(ticks) / second


def numbers(line: str) -> tuple[int, int, int]:
    """Return the three numbers in a line of nvidia-smi, 0 for each that it does not know."""
    words = [word.strip() for word in line.strip().split(",")]
    first, second, third = ([int(word) if word.isdigit() else 0 for word in words] + [0, 0, 0])[:3]
    return first, second, third
