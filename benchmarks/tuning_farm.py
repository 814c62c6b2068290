"""Trials a second of `tvmconv tune`: on one device, on several of this machine, and through a tracker with servers.

    python benchmarks/tuning_farm.py --seconds 45                   # all GPUs
    python benchmarks/tuning_farm.py --seconds 45 --devices 0,1 -o farm.json
    python benchmarks/tuning_farm.py --seconds 30 --target llvm     # a CPU, which is one device

Each way searches the same space anew for the same time. "trials" are those that ended in it, the start of all processes
included; "a second" is the rate from the fifth part of the time on, when everything runs.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from script import Document, Row, numbers, options_of

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


def main() -> None:
    parser = options_of(__doc__, target=WORKLOADS, seconds=45.0, tuner="xgb")
    parser.add_argument("--devices", type=numbers, help="numbers of GPUs, such as 0,1; by default all like the first")
    options = parser.parse_args()
    devices = chosen_devices(options.target, tuple(options.devices) if options.devices else None)
    if not devices:
        parser.error("there is no GPU here")
    workload = WORKLOADS[options.target]
    about = {"workload": json.loads(workload.to_json()), "space": space_size(options.target)}
    document = Document(options.output, options.target, **about, seconds=options.seconds, tuner=options.tuner)
    for name, some, by_rpc in ways(devices):
        row = measured(options, some, by_rpc)
        first = document.rows[0] if document.rows else row
        row |= {"way": name, "times": round(row["trials"] / first["trials"], 2)}
        row["rate_times"] = round(row["rate"] / first["rate"], 2)
        document.add(
            row,
            f"{name:24s} {row['trials']:5d} trials ({row['times']:.2f} times), {row['rate']:6.2f} a second "
            f"({row['rate_times']:.2f} times), failures {row['failures']}",
        )


def ways(numbers: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...], bool]]:
    """Yield a name for each way, its devices, and whether servers have them."""
    for by_rpc in (False, True):
        for count in sorted({1, len(numbers)}):
            devices = f"{count} device{'s' * (count > 1)}"
            yield f"{devices}, {'by RPC' if by_rpc else 'local'}", numbers[:count], by_rpc


def measured(options: argparse.Namespace, devices: tuple[int, ...], by_rpc: bool) -> Row:
    """Return the trials, the rate and the failures of a search of so many seconds on devices."""
    target, seconds = options.target, options.seconds
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        tune = ["tune", "--workload", WORKLOADS[target].to_json(), "--target", target, "-o", str(log)]
        tune += ["--trials", str(space_size(target)), "--time-budget", str(seconds), "--tuner", options.tuner]
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
        process.send_signal(signal.SIGTERM)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def space_size(target: str) -> int:
    return len(create(WORKLOADS[target], target).space.configs)


if __name__ == "__main__":
    main()
