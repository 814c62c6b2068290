"""Torch's own samples of its operators, each imported, built and run: right, refused, or wrong.

`python -m tests.torch_operators --jobs 16 --results operators.jsonl --markdown docs/torch-operators.md` runs all of
them. Each operator and dtype has a process of its own, so that one that crashes or hangs costs one sample, and is
named: after the first, samples are tried one by one. What is done is kept: the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import selectors
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch

import tvmconv
from tests import torch_samples
from tests.torch_exports import remember_composite_operators
from tests.torch_samples import DTYPES, EXCLUDED, RAW, REFUSED, RIGHT, WRONG, Outcome, operators

CRASH, HANG = "crash", "hang"
FAILURES = (WRONG, RAW, CRASH, HANG)

Task = tuple[str, str]
"""An operator and a dtype, as names."""

HEAD = """\
# Operators of torch

Torch's own samples of its operators (`op_db` of torch {version}){part}, imported, built and run on the
CPU, and compared with what torch makes of them, and with what it makes of them in float64. {right} are right, {refused}
are refused with an error, {wrong} are wrong. `python -m tests.torch_operators{option} --markdown
docs/torch-operators.md` writes this page; `tests/network/frontends/test_torch_operators.py` runs a part of it.

The numbers are those of samples that are right, and of all where some are refused. Left out are operators whose results
are

{excluded}

| operator | {dtypes} | why some are refused |
| --- | {lines} | --- |
"""


class Worker:
    """A process that classifies the samples of an operator in a dtype from one on, and writes each into a pipe.

    It takes several `together`, or each by itself, which shows the one that ends it.
    """

    def __init__(self, task: Task, first: int, last: int, together: bool) -> None:
        self.task = task
        self.together = together
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _work(*task, first, last, together, end)
        os.close(end)
        self.since = time.monotonic()
        self.rest = b""
        self.outcomes: list[Outcome] = []

    def read(self) -> bool:
        """Take the results that have come; return whether the process goes on."""
        data = os.read(self.pipe, 1 << 16)
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        self.outcomes += [Outcome(*json.loads(line)) for line in lines]
        if lines:
            self.since = time.monotonic()
        return bool(data)

    def close(self, kill: bool) -> int:
        """End the process and return its exit status."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work(name: str, dtype: str, first: int, last: int, together: bool, pipe: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    status = 1
    try:
        calls = itertools.islice(torch_samples.samples(name, dtype), first, last)
        for outcome in torch_samples.outcomes(calls, together):
            os.write(pipe, json.dumps([outcome.kind, outcome.message]).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def warm_up() -> None:
    """Load once the modules that every process needs; nothing runs, so that no thread exists when they fork."""
    remember_composite_operators(setattr)
    relu = torch.nn.ReLU()
    tvmconv.build(tvmconv.import_model(relu, (torch.zeros(1),)))


def run_all(tasks: list[Task], jobs: int, last: int, seconds: float) -> Iterator[tuple[Task, list[Outcome]]]:
    """Yield the outcomes of each task, an operator and a dtype, as they are done; a sample may take so many seconds."""
    selector = selectors.DefaultSelector()
    waiting, before = list(reversed(tasks)), dict[Task, list[Outcome]]()
    running: set[Worker] = set()

    def start(task: Task, together: bool) -> None:
        worker = Worker(task, len(before.setdefault(task, [])), last, together)
        selector.register(worker.pipe, selectors.EVENT_READ, worker)
        running.add(worker)

    while waiting or running:
        while waiting and len(running) < jobs:
            start(waiting.pop(), together=True)
        ready = {key.data for key, _ in selector.select(timeout=1)}
        for worker in list(running):
            alive = worker.read() if worker in ready else True
            late = time.monotonic() - worker.since > seconds
            if alive and not late:
                continue
            selector.unregister(worker.pipe)
            running.remove(worker)
            status = worker.close(kill=alive)
            key = worker.task
            before[key] += worker.outcomes
            if status == 0:
                yield key, before.pop(key)
                continue
            if not worker.together:
                lost = Outcome(HANG, f"more than {seconds:.0f} s") if alive else Outcome(CRASH, f"exit status {status}")
                before[key].append(lost)
            start(key, together=False)


def page(done: dict[Task, list[Outcome]], samples: int) -> str:
    """Return the table of all operators with a sample that is not refused, and the names of the others.

    At most so many samples of each operator and dtype are in `done`; `sys.maxsize` means all.
    """
    is_part = samples < sys.maxsize
    counts = Counter(outcome.kind for outcomes in done.values() for outcome in outcomes)
    reasons = {reason: [name for name in EXCLUDED if EXCLUDED[name] == reason] for reason in EXCLUDED.values()}
    text = HEAD.format(
        version=torch.__version__.partition("+")[0],
        part=f", the first {samples} of each operator and dtype" if is_part else "",
        option=f" --samples {samples}" if is_part else "",
        right=counts[RIGHT],
        refused=counts[REFUSED],
        wrong=sum(counts[kind] for kind in FAILURES),
        excluded="\n".join(f"- {reason}: {', '.join(names)}" for reason, names in reasons.items()),
        dtypes=" | ".join(DTYPES),
        lines=" | ".join("---:" for _ in DTYPES),
    )
    refused = []
    for name in sorted({name for name, _ in done}):
        rows = [done.get((name, dtype), []) for dtype in DTYPES]
        if all(outcome.kind == REFUSED for row in rows for outcome in row):
            refused.append(f"`{name}`")
            continue
        told = next((outcome.message for row in rows for outcome in row if outcome.kind == REFUSED), "")
        text += f"| {name} | {' | '.join(map(_cell, rows))} | {_reason(told)} |\n"
    return text + f"\nAll samples are refused of {', '.join(refused)}.\n"


def _cell(outcomes: list[Outcome]) -> str:
    right, failed = (sum(outcome.kind in kinds for outcome in outcomes) for kinds in ((RIGHT,), FAILURES))
    text = f"{right}" if right == len(outcomes) else f"{right} of {len(outcomes)}"
    return (text if outcomes else "-") + (f", **{failed} wrong**" if failed else "")


def _reason(message: str) -> str:
    """Return the part of an error that tells it from others."""
    message = message.removeprefix("the model cannot be imported: ").partition(". What would help")[0]
    return re.sub(r" \(node [^)]*\)", "", message)[:120].replace("|", "/")


def read(path: Path) -> dict[Task, list[Outcome]]:
    """Read the outcomes of an earlier run; remove a last line that was not written to its end."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        path.write_text("".join(lines[:-1]))
        lines.pop()
    records = map(json.loads, lines)
    return {(one["operator"], one["dtype"]): [Outcome(*outcome) for outcome in one["outcomes"]] for one in records}


def main(arguments: list[str]) -> int:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the processes are forked, which the use of a GPU does not survive
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names of operators; all without any")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be given more than once; all without it")
    parser.add_argument("--samples", type=int, default=sys.maxsize, help="so many of each operator and dtype, not all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one sample may take")
    parser.add_argument("--results", type=Path, help="a file of JSON lines to go on with")
    parser.add_argument("--markdown", type=Path, help="the page to write")
    given = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = "1"
    warm_up()
    names = given.operators or [name for name in operators() if name not in EXCLUDED]
    tasks = [
        (name, dtype) for dtype in given.dtype or DTYPES for name in names if DTYPES[dtype] in operators()[name].dtypes
    ]
    done = read(given.results) if given.results else {}
    for task, outcomes in run_all(
        [task for task in tasks if task not in done], given.jobs, given.samples, given.seconds
    ):
        done[task] = outcomes
        for number, outcome in enumerate(outcomes):
            if outcome.kind in FAILURES:
                print(f"{' '.join(task)} sample {number}: {outcome.kind}: {outcome.message}", flush=True)
        if given.results:
            record = {"operator": task[0], "dtype": task[1], "outcomes": [[o.kind, o.message] for o in outcomes]}
            with given.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
    if given.markdown:
        given.markdown.write_text(page({task: done[task][: given.samples] for task in tasks}, given.samples))
    counts = Counter(outcome.kind for task in tasks for outcome in done[task])
    print(", ".join(f"{counts[kind]} {kind}" for kind in (RIGHT, REFUSED, *FAILURES)))
    return any(counts[kind] for kind in FAILURES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
