"""Trials a second of `tvmconv tune`: on one device, on several of this machine, and through a tracker with servers.

    python benchmarks/tuning_farm.py --seconds 45                   # all GPUs
    python benchmarks/tuning_farm.py --seconds 45 --devices 0,1 -o farm.json
    python benchmarks/tuning_farm.py --seconds 30 --target llvm     # a CPU, which is one device

Each way searches the same space anew for the same time. "trials" are those that ended in it, the start of all processes
included; "rate" is the number a second from the fifth part of the time on, when everything runs, and
"rate_times" its multiple of the first way's.
"""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from script import Row, main, numbers

from tvmconv import ConvWorkload
from tvmconv.autotvm.measure import Stage
from tvmconv.autotvm.measure.runner import chosen_devices
from tvmconv.autotvm.record import load_from_file
from tvmconv.autotvm.task import create

HOST, KEY = "127.0.0.1", "farm"
COMMAND = (sys.executable, "-c", "from tvmconv.cli import main; main()")
WORKLOADS = {
    "cuda": ConvWorkload.depthwise((1, 512, 96, 96), (512, 1, 3, 3), padding="SAME"),
    "llvm": ConvWorkload.depthwise((1, 32, 28, 28), (32, 1, 3, 3), padding="SAME"),
}
WARM_UP = 0.2
"""The share of the time at the beginning that does not count for the rate."""


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Yield a row for each way: one device and all, of this process and of servers."""
    devices = chosen_devices(given.target, tuple(given.devices) if given.devices else None)
    if not devices:
        sys.exit("there is no GPU here")
    first: Row = {}
    for by_rpc in (False, True):
        for count in sorted({1, len(devices)}):
            row = measured(given, devices[:count], by_rpc)
            first = first or row
            times, rate_times = (round(row[key] / first[key], 2) for key in ("trials", "rate"))
            way = f"{count} device{'s' * (count > 1)}, {'by RPC' if by_rpc else 'local'}"
            yield {"way": way, **row, "trials_times": times, "rate_times": rate_times}


def measured(given: argparse.Namespace, devices: tuple[int, ...], by_rpc: bool) -> Row:
    """Return the trials, the rate and the failures of a search of so many seconds on devices."""
    target, seconds, workload = given.target, given.seconds, WORKLOADS[given.target]
    with tempfile.TemporaryDirectory() as folder:
        log, size = Path(folder, "log.jsonl"), len(create(workload, target).space.configs)
        tune = ["tune", "--workload", workload.to_json(), "--target", target, "-o", str(log)]
        tune += ["--trials", str(size), "--time-budget", str(seconds), "--tuner", given.tuner]
        if by_rpc:
            with farm(devices, target) as address:
                begun = run([*tune, "--rpc-tracker", address, "--rpc-key", KEY])
        else:
            begun = run(tune if target == "llvm" else [*tune, "--devices", ",".join(map(str, devices))])
        records = [record for record in load_from_file(log).records if record.stage is Stage.SEARCH]
    # The time budget begins after the imports, of which `begun` knows nothing: the last record ends it.
    ends = sorted(record.timestamp for record in records)
    if len(ends) < 10:
        sys.exit(f"{len(ends)} trials are too few to tell a rate: give more --seconds")
    late = [end for end in ends if end > ends[-1] - (1 - WARM_UP) * seconds]
    return {
        "trials": len(records),
        "rate": round((len(late) - 1) / (late[-1] - late[0]), 3),
        "first_seconds": round(ends[0] - begun, 2),
        "failures": dict(Counter(record.status.value for record in records if not record.costs)),
    }


def run(arguments: list[str]) -> float:
    """Run the command; return the time when it began."""
    begun = time.time()
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}\n{done.stderr}")
    return begun


@contextmanager
def farm(devices: tuple[int, ...], target: str) -> Iterator[str]:
    """Yield the address of a tracker with a server for each device."""
    address = f"{HOST}:{free_port()}"
    server = ["--tracker", address, "--key", KEY, "--port", str(free_port())]
    if target == "cuda":
        server += [word for number in devices for word in ("--device", str(number))]
    tracker = ["rpc", "tracker", "--port", address.rpartition(":")[2]]
    with serving(tracker, 1), serving(["rpc", "server", *server], len(devices)):
        time.sleep(1)  # until the tracker knows all of them
        yield address


@contextmanager
def serving(arguments: list[str], lines: int) -> Iterator[None]:
    """Run a command during the block, which begins once the command has said where it listens."""
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if not all(process.stdout.readline() for _ in range(lines)):
            sys.exit(f"{' '.join(arguments)} has ended")
        yield
    finally:
        process.terminate()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main(__doc__, rows, target=WORKLOADS, devices=numbers, seconds=45.0, tuner="xgb")
