"""The disturbances of a machine that is measured, told by numbers, and the reading of its state."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from tvmconv.calibration import steadiness
from tvmconv.calibration.steadiness import Clock, Processors, Reading, disturbance, numbers


def readings(*pairs: tuple[float, int]) -> list[Reading]:
    return [Reading(1e-6 * micro, mhz) for micro, mhz in pairs]


@pytest.mark.parametrize(
    ("found", "highest", "expected"),
    [
        (readings((10, 1980), (10.4, 1980), (10.1, 1950)), 1980, None),
        (readings((10, 0), (10.4, 0)), 0, None),  # nvidia-smi tells nothing
        (readings((10, 2500), (10, 2490)), 3105, None),  # a GeForce seldom reaches its highest clock
        (readings((10, 1980), (10.6, 1980), (10, 1980)), 1980, "the same kernel took 10 µs and 10.6 µs"),
        (readings((10, 1980), (10, 1800), (10, 1980)), 1980, "the clock was between 1800 and 1980 MHz"),
        (readings((10, 1200), (10, 1200)), 1980, "the clock was 1200 MHz, and the GPU has up to 1980 MHz"),
    ],
    ids=["steady", "unknown-clock", "below-the-highest", "another-time", "a-fall", "throttled"],
)
def test_disturbances(found: list[Reading], highest: int, expected: str | None) -> None:
    with closing(Processors(0.0)) as gauge:
        gauge.drift, gauge.highest = 1.05, highest
        assert disturbance(found, gauge) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1980, 1980, 0\n", (1980, 1980, 0)),
        ("345, [N/A], 7", (345, 0, 7)),
        ("No devices were found", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
    ids=repr,
)
def test_numbers(line: str, expected: tuple[int, int, int]) -> None:
    assert numbers(line) == expected


def test_the_clock_follows_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that stands for nvidia-smi says one clock when it is asked once, and others when it repeats."""
    program = tmp_path / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\necho "$@" >> "$0.asked"\necho "300, 1980, 12"\n'
        'case "$*" in *-lms*) while true; do echo "1755, 1980, 99"; sleep 0.01; done;; esac\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,0")
    with closing(Clock()) as clock:
        assert (clock.highest, clock.use) == (1980, 12)
        end = time.monotonic() + 10
        while clock.mhz != 1755 and time.monotonic() < end:
            time.sleep(0.01)
        assert clock.mhz == 1755
    assert (tmp_path / "nvidia-smi.asked").read_text().splitlines()[0].endswith("-i 1")


def test_there_may_be_no_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with closing(Clock()) as clock:
        assert (clock.mhz, clock.highest, clock.use) == (0, 0, 0)


def test_other_programs_use_cores() -> None:
    """A program that counts uses one of the cores, whatever else runs."""
    count = os.cpu_count() or 1
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as program:
        try:
            assert Processors(0.5).use >= 60 / count
        finally:
            program.kill()


def test_processors_count_what_others_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time that was idle, or waited for a disk, is none of use, nor is that of this process."""
    second = os.sysconf("SC_CLK_TCK")
    lines = iter(([30, 0, 30, 900, 40, 0, 0, 0], [40, 0, 50, 950, 50, 0, 0, 0]))
    seconds = iter((7, 17))

    def read(path: Path) -> str:
        return " ".join(["cpu", *(str(number * second) for number in next(lines))])

    monkeypatch.setattr(steadiness.Path, "read_text", read)
    monkeypatch.setattr(steadiness.time, "process_time", lambda: next(seconds))
    assert Processors(0.0).use == round(100 * (30 - 10) / 90)
