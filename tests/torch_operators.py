"""Torch's own samples of its operators, each imported, built and run: right, refused, or wrong.

`python tests/torch_operators.py --jobs 16 --results operators.jsonl --markdown docs/torch-operators.md` runs all of
them. Each operator and dtype has a process of its own, so that one that crashes or hangs costs one sample, and is named.
A result is kept as soon as it is there: the same command goes on where it was ended.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import selectors
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tvmconv
from tvmconv.errors import TvmconvError

RIGHT, REFUSED, WRONG, RAW, CRASH, HANG = "right", "refused", "wrong", "raw error", "crash", "hang"
FAILURES = (WRONG, RAW, CRASH, HANG)

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int64", "bool")}

TOLERANCES = {torch.float64: (1e-6, 1e-6), torch.float32: (1e-5, 1e-5), torch.float16: (4e-3, 4e-3), torch.bfloat16: (3e-2, 3e-2)}
"""What a result of each dtype may differ by, relative to itself and relative to the largest of its tensor."""

RANDOM = (
    "bernoulli cauchy exponential geometric log_normal multinomial normal normal.in_place normal.number_mean randint "
    "randint_like randn randn_like rand_like uniform nn.functional.alpha_dropout nn.functional.dropout "
    "nn.functional.dropout2d nn.functional.dropout3d nn.functional.feature_alpha_dropout "
    "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d nn.functional.rrelu "
    "pca_lowrank svd_lowrank"
).split()
UNINITIALIZED = "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split()
EXCLUDED = {name: "random" for name in RANDOM} | {name: "memory that is not initialized" for name in UNINITIALIZED}
"""Operators whose results are not known, and why."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    message: str = ""


class Call(torch.nn.Module):  # type: ignore[misc]
    """An operator with all of a sample but its tensors, which it is called with."""

    def __init__(self, function: Callable[..., Any], sample: Any) -> None:
        super().__init__()
        self.function = function
        leaves, self.form = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [place for place, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[place].detach() for place in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.others)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, arguments, keywords = pytree.tree_unflatten(leaves, self.form)
        return self.function(first, *arguments, **keywords)


@cache
def operators() -> dict[str, Any]:
    """Torch's operators by name, with the variant where one has several."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


def samples(name: str, dtype: str) -> Iterator[Call]:
    """An operator's samples, the same in every process."""
    torch.manual_seed(0)
    op = operators()[name]
    if DTYPES[dtype] in op.dtypes:
        for sample in op.sample_inputs("cpu", DTYPES[dtype]):
            yield Call(op.op, sample)


def classify(call: Call) -> Outcome:
    """What becomes of a sample that torch itself can run, on the way that `torch.compile` takes to a network.

    It goes by `torch.export` at once, not by TorchDynamo, which would leave what it cannot trace to torch.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = _run(call, call.tensors)
        try:
            network = tvmconv.build(tvmconv.import_model(call, call.tensors))
            results = network(*call.tensors)
        except TvmconvError as error:
            return Outcome(REFUSED, _line(error))
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            return Outcome(RAW, f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {_line(error)}")
        try:
            exact = _run(call, tuple(value.double() if value.is_floating_point() else value for value in call.tensors))
        except (RuntimeError, ValueError, TypeError):
            exact = expected
        found = list(results) if isinstance(results, tuple) else [results]
        problem = difference(found, expected, exact)
        return Outcome(WRONG, problem) if problem else Outcome(RIGHT)


def _run(call: Call, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    results = call(*(tensor.clone() for tensor in tensors))
    return [value for value in pytree.tree_leaves(results) if isinstance(value, torch.Tensor)]


def difference(found: list[Any], expected: list[torch.Tensor], exact: list[torch.Tensor]) -> str:
    """What is wrong with a network's results: nothing where each element is torch's, or that of float64."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, not {len(expected)}"
    for place, (y, near, best) in enumerate(itertools.zip_longest(found, expected, exact)):
        if not isinstance(y, torch.Tensor):
            y = torch.from_numpy(y.numpy())
        if (y.shape, y.dtype) != (near.shape, near.dtype):
            return f"output {place} is {y.dtype} {tuple(y.shape)}, not {near.dtype} {tuple(near.shape)}"
        usable = best is not None and best.shape == near.shape
        right = _close(y, near) | (_close(y, best.to(near.dtype)) if usable else False)
        if not right.all():
            at = tuple(int(i) for i in (~right).nonzero()[0])
            share = f"{int((~right).sum())} of {right.numel()} elements"
            return f"output {place}{list(at)} is {y[at].item()}, not {near[at].item()}; {share}"
    return ""


def _close(y: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    if not reference.is_floating_point():
        return y == reference
    relative, absolute = TOLERANCES[reference.dtype]
    y, wide = y.double(), reference.double()
    finite = wide[wide.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    near = (y - wide).abs() <= relative * wide.abs() + absolute * scale
    return near | (y == wide) | (y.isnan() & wide.isnan())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]


# --- All of them, in processes ---


class Worker:
    """A process that classifies the samples of an operator in a dtype from one on, and writes each into a pipe."""

    def __init__(self, name: str, dtype: str, first: int, last: int) -> None:
        self.name, self.dtype, self.number, self.last = name, dtype, first, last
        self.pipe, end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.pipe)
            _work(name, dtype, first, last, end)
        os.close(end)
        self.since = time.monotonic()
        self.rest = b""
        self.outcomes: list[Outcome] = []

    def read(self) -> bool:
        """Takes what has come; whether the process goes on."""
        data = os.read(self.pipe, 1 << 16)
        self.rest += data
        *lines, self.rest = self.rest.split(b"\n")
        self.outcomes += [Outcome(*json.loads(line)) for line in lines]
        if lines:
            self.since = time.monotonic()
        return bool(data)

    def close(self, kill: bool) -> int:
        """The status that the process ends with."""
        if kill:
            os.kill(self.pid, signal.SIGKILL)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def _work(name: str, dtype: str, first: int, last: int, pipe: int) -> None:
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    torch.set_num_threads(1)
    status = 1
    try:
        for call in itertools.islice(samples(name, dtype), first, last):
            outcome = classify(call)
            os.write(pipe, json.dumps([outcome.kind, outcome.message]).encode() + b"\n")
        status = 0
    finally:
        os._exit(status)


def warm_up() -> None:
    """Loads once what every process needs; nothing is run, so that no thread is there when they begin."""
    relu = torch.nn.ReLU()
    tvmconv.build(tvmconv.import_model(relu, (torch.zeros(1),)))


def run_all(tasks: list[tuple[str, str]], jobs: int, last: int, seconds: float) -> Iterator[tuple[str, str, list[Outcome]]]:
    """The outcomes of each task, an operator and a dtype, as they are done; a sample may take so many seconds."""
    selector = selectors.DefaultSelector()
    waiting, before = list(reversed(tasks)), dict[tuple[str, str], list[Outcome]]()
    running: set[Worker] = set()

    def start(name: str, dtype: str) -> None:
        worker = Worker(name, dtype, len(before.setdefault((name, dtype), [])), last)
        selector.register(worker.pipe, selectors.EVENT_READ, worker)
        running.add(worker)

    while waiting or running:
        while waiting and len(running) < jobs:
            start(*waiting.pop())
        ready = {key.data for key, _ in selector.select(timeout=1)}
        for worker in list(running):
            alive = worker.read() if worker in ready else True
            late = time.monotonic() - worker.since > seconds
            if alive and not late:
                continue
            selector.unregister(worker.pipe)
            running.remove(worker)
            status = worker.close(kill=alive)
            key = (worker.name, worker.dtype)
            before[key] += worker.outcomes
            if status == 0:
                yield *key, before.pop(key)
                continue
            lost = Outcome(HANG, f"more than {seconds:.0f} s") if alive else Outcome(CRASH, f"exit status {status}")
            before[key].append(lost)
            start(*key)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("operators", nargs="*", help="names of operators; all without any")
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be given more than once; all without it")
    parser.add_argument("--samples", type=int, default=1 << 30, help="take so many of each operator and dtype, not all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--seconds", type=float, default=120.0, help="how long one sample may take")
    parser.add_argument("--results", type=Path, help="a file of JSON lines to go on with")
    parser.add_argument("--markdown", type=Path, help="the page to write")
    given = parser.parse_args(arguments)
    os.environ["TVM_NUM_THREADS"] = "1"
    warm_up()
    names = given.operators or [name for name in operators() if name not in EXCLUDED]
    tasks = [(name, dtype) for dtype in given.dtype or DTYPES for name in names]
    done: dict[tuple[str, str], list[Outcome]] = {}
    if given.results and given.results.exists():
        for line in given.results.read_text().splitlines():
            record = json.loads(line)
            done[record["operator"], record["dtype"]] = [Outcome(*outcome) for outcome in record["outcomes"]]
    rest = [task for task in tasks if task not in done]
    for name, dtype, outcomes in run_all(rest, given.jobs, given.samples, given.seconds):
        done[name, dtype] = outcomes
        for number, outcome in enumerate(outcomes):
            if outcome.kind in FAILURES:
                print(f"{name} {dtype} sample {number}: {outcome.kind}: {outcome.message}", flush=True)
        if given.results:
            line = json.dumps({"operator": name, "dtype": dtype, "outcomes": [[o.kind, o.message] for o in outcomes]})
            with given.results.open("a") as file:
                file.write(line + "\n")
    counts = Counter(outcome.kind for task in tasks for outcome in done[task])
    print(", ".join(f"{counts[kind]} {kind}" for kind in (RIGHT, REFUSED, *FAILURES)))
    return any(counts[kind] for kind in FAILURES)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
