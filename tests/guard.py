"""A guard for changes that are to change no kernel: `make guard` compares choices and code with a file.

The file has problems of the suites, of networks and at random. On each of six targets it has for each problem the
template and the configuration that are chosen without any record, or the error, and for one problem in `EACH` a digest
of the kernel's code too, in CUDA C++ or LLVM IR. Neither GPUs nor CPUs of these kinds are needed.

    python -m tests.guard             compares; the exit code is 1 where anything differs
    python -m tests.guard --record    writes the file anew, for the problems in it
    python -m tests.guard --collect   collects the problems first, for which it imports the networks of `bench networks`
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

from tvmconv.checking.draws import Draw
from tvmconv.checking.suites import load_suite, suite_names
from tvmconv.dispatch import Selection
from tvmconv.dispatch.registry import default_config, template_for, template_name
from tvmconv.problem import Problem
from tvmconv.problem.errors import TvmconvError
from tvmconv.runtime.operator import build_kernel
from tvmconv.targets import backend_of, resolve_target
from tvmconv.testing.trials import random_trial

FILE = Path(__file__).parent / "guard.json.gz"

TARGETS: dict[str, dict[str, Any]] = {
    "avx2": {"kind": "llvm", "mcpu": "znver3", "num-cores": 4},
    "avx512": {"kind": "llvm", "mcpu": "znver4", "num-cores": 8},
    "amx": {"kind": "llvm", "mcpu": "sapphirerapids", "num-cores": 2},
    "sm_80": {"kind": "cuda", "arch": "sm_80"},
    "sm_90": {"kind": "cuda", "arch": "sm_90"},
    "sm_120": {"kind": "cuda", "arch": "sm_120"},
}

RANDOM = 50
"""The number of random problems for each target."""

EACH = 8
"""Every eighth problem has a digest: on one target choosing takes 10 ms, and building 100 ms."""

ADDRESS = re.compile(r'(?<=!")0x[0-9a-f]+(?=[."])')
"""An address in this process, by which TVM names arrays in LLVM IR."""

Row = dict[str, str]
"""The choice for one problem on each target, by the target's name."""


@cache
def target(name: str) -> Any:
    return resolve_target(TARGETS[name])


def problems() -> list[Problem]:
    """Return the problems of the suites in several dtypes and batches, of networks, and random ones, each only once."""
    found = [*_of_suites(), *_of_networks(), *_at_random()]
    return list(dict.fromkeys(found))


def _of_suites() -> Iterator[Problem]:
    for name, dtype, (kind, batch) in product(
        suite_names(), ("float32", "float16", "int8"), (("llvm", 1), ("cuda", None))
    ):
        for workload in load_suite(name, kind, batch, dtype).values():
            yield Problem(workload)
            if dtype == "float32":
                yield Problem(workload, precision="tf32")
            if name == "sparse-paper" and dtype == "float32":
                yield Problem(workload, 0.9)


def _of_networks() -> Iterator[Problem]:
    import torch

    from tvmconv import import_model
    from tvmconv.autotvm.task import extract_from_model
    from tvmconv.bench.networks.models import NETWORKS, SIZE, SIZES

    for name, network in NETWORKS.items():
        size = SIZES.get(name, SIZE)
        model = import_model(network().eval(), (torch.zeros(1, 3, size, size),))
        for kind, precision in (("avx512", "float32"), ("sm_90", "float16")):
            for task in extract_from_model(model, target(kind), precision=precision):
                yield task.problem


def _at_random() -> Iterator[Problem]:
    for name in TARGETS:
        for number in range(RANDOM):
            yield random_trial(Draw(f"guard/{number}"), target(name), number)[0].problem


def row(numbered: tuple[int, str]) -> Row:
    """Return what is chosen for a problem, which is in JSON, on each target."""
    number, text = numbered
    problem = Problem.from_json(text)
    return {name: _chosen(problem, name, number % EACH == 0) for name in TARGETS}


def _chosen(problem: Problem, name: str, has_digest: bool) -> str:
    """Return the template and the configuration for a problem on a target, and a digest of the code, or the error."""
    try:
        template = template_for(problem, target(name))
        config = default_config(template, problem, str(target(name)))
        selection = Selection(template, config, "guard", template_name(template))
        chosen = f"{selection.name} {config}"
        if has_digest:
            library = build_kernel(problem, selection, target(name)).executable.mod
            code = ADDRESS.sub("", backend_of(target(name)).text(library, "source", target(name)))
            chosen += f" {sha256(code.encode()).hexdigest()[:16]}"
    except TvmconvError as error:
        return f"{type(error).__name__}: {error}"
    return chosen


def rows(texts: list[str], jobs: int | None) -> Iterator[Row]:
    with ProcessPoolExecutor(jobs) as pool:
        yield from pool.map(row, enumerate(texts), chunksize=8)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write what is chosen for the problems of the file")
    parser.add_argument("--collect", action="store_true", help="collect the problems first")
    parser.add_argument("--jobs", type=int, help="processes, one for each CPU without it")
    given = parser.parse_args(arguments)
    kept = {} if given.collect else json.loads(gzip.decompress(FILE.read_bytes()))
    texts = [problem.to_json() for problem in problems()] if given.collect else list(kept)
    found = dict(zip(texts, rows(texts, given.jobs), strict=True))
    if given.collect or given.record:
        FILE.write_bytes(gzip.compress(json.dumps(found, indent=0).encode(), mtime=0))
        print(f"{len(found)} problems")
        return 0
    differences = Counter[str]()
    for text, chosen in found.items():
        for name, now in chosen.items():
            if now != kept[text][name]:
                differences[name] += 1
                print(f"{name} {text}\n  before: {kept[text][name]}\n  now:    {now}")
    print(f"{len(found)} problems on {len(TARGETS)} targets: {differences.total()} differences")
    return int(bool(differences))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
