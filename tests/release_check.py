"""The steps that a release needs beyond `make lint test`, one after another: `make release-check`.

Steps that need a GPU are left out where there is none, and the table at the end says so: a release needs them done once
on a machine that has one. The output of a step lies in a file beside the others, and a step that is ended goes on where
it was if it can. `python -m tests.release_check tests hostile` runs these steps alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

from tvmconv.targets import has_gpu

ROOT = Path(__file__).parents[1]
PYTHON = sys.executable
TVMCONV = (PYTHON, "-c", "from tvmconv.cli import main; main()")


class Step(NamedTuple):
    """A command with its purpose, and whether it needs a GPU."""

    name: str
    what: str
    command: tuple[object, ...]
    on_gpu: bool = False


def steps(seed: int, jobs: int, seconds: int, reports: Path) -> list[Step]:
    """Return all steps; `seconds` is the time for which damaged files are tried."""
    pytest = (PYTHON, "-m", "pytest")
    verify = (*TVMCONV, "verify", "--seed", seed, "--parallel", jobs)
    twins = ("--target", '{"kind": "cuda", "arch": "sm_90"}', "--serial-twin")
    conformance, operators = (reports / f"{name}.jsonl" for name in ("onnx", "torch"))
    return [
        Step(
            "tests", "19 known networks, and cases beyond those of `make test`", (*pytest, "-m", "release", "-n", jobs)
        ),
        Step("verify", "10,000 random convolutions on the CPU", (*verify, "--count", 10_000)),
        Step("verify-twins", "10,000 for CUDA, as serial twins", (*verify, *twins, "--count", 10_000)),
        Step("verify-bounds", "500 with every access past an array a crash", (*verify, "--bounds", "--count", 500)),
        Step(
            "onnx",
            "all tests of ONNX's operators; its page is written",
            (PYTHON, "-m", "tests.onnx_conformance", "--jobs", jobs, "--results", conformance),
        ),
        Step(
            "torch",
            "all of torch's samples of its operators; their page is written",
            (
                *(PYTHON, "-m", "tests.torch_operators", "--jobs", jobs, "--results", operators),
                *("--markdown", "docs/torch-operators.md"),
            ),
        ),
        Step(
            "hostile",
            f"damaged models and logs for {seconds} s",
            (PYTHON, "-m", "tests.hostile", "--seconds", seconds, "--seed", seed, "--keep", reports / "hostile"),
        ),
        Step("pages", "commands that pages show and a CPU runs in a minute", (PYTHON, "-m", "tests.page_commands")),
        Step("stability", "100,000 calls of each kind", (PYTHON, "-m", "tests.stability")),
        Step(
            "gpu",
            "tests of real GPUs",
            (*pytest, *map(str, sorted((ROOT / "tests").rglob("test_*gpu.py")))),
            on_gpu=True,
        ),
        Step("verify-gpu", "1000 random convolutions on it", (*verify, "--target", "cuda", "--count", 1000), True),
        Step("sanitize", "compute-sanitizer's four tools over all cases", ("make", "-j4", "sanitize"), on_gpu=True),
    ]


def run(step: Step, reports: Path) -> str:
    """Run a step and return its outcome."""
    if step.on_gpu and not has_gpu():
        return "left out: there is no GPU"
    log = reports / f"{step.name}.log"
    print(f"{step.name}: {step.what}; it prints into {log}", flush=True)
    begun = time.monotonic()
    with log.open("a") as output:
        command = [str(part) for part in step.command]
        status = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, check=False).returncode
    minutes = (time.monotonic() - begun) / 60
    return f"done in {minutes:.1f} minutes" if status == 0 else f"FAILED with exit code {status} ({log})"


def main(arguments: list[str]) -> int:
    today = f"{date.today():%Y%m%d}"
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="step", help="names of steps; all without any")
    parser.add_argument("--seed", type=int, default=int(today), help="of what is random; today's date without it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes side by side")
    parser.add_argument("--seconds", type=int, default=3600, help="how long damaged files are tried")
    parser.add_argument("--reports", type=Path, default=ROOT / "build/release-check" / today, help="a folder")
    given = parser.parse_args(arguments)
    found = {step.name: step for step in steps(given.seed, given.jobs, given.seconds, given.reports.resolve())}
    if unknown := [name for name in given.names if name not in found]:
        parser.error(f"step is {unknown[0]!r}; expected one of {', '.join(found)}")
    given.reports.mkdir(parents=True, exist_ok=True)
    outcomes = {name: run(found[name], given.reports) for name in given.names or found}
    print(f"\nseed {given.seed}, {given.jobs} jobs")
    for name, outcome in outcomes.items():
        print(f"{name:14} {found[name].what}: {outcome}")
    return any(outcome.startswith("FAILED") for outcome in outcomes.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
