"""Records of random problems by each template of a kind of machine, for fits of its model.

A problem of a template is measured in the default configuration, in others that the model takes for worth a trial, and
in as many that are legal, drawn at random. Other templates that take the problem are measured in a few configurations.
The file is a tuning log. The same command goes on where it was ended. On a CPU nothing else may run: a program that
uses one core for a moment doubles the times of kernels of all cores.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import tvm
from script import options_of

from tvmconv import autotvm
from tvmconv.calibration.problems import LARGE, SMALL
from tvmconv.calibration.trials import key_of, keys_in, trials
from tvmconv.dispatch import algorithms_on
from tvmconv.dispatch.record import Record, append
from tvmconv.dispatch.trial import MeasureInput
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.targets import backend_of, resolve_target

FEW = 3
"""The number of configurations of a template for a problem that was drawn for another template."""


def algorithms_of(target: tvm.target.Target) -> list[str]:
    """Return the algorithms of a target, with those that fuse more than a convolution."""
    return [*algorithms_on(target), *(("attention", "gate") if backend_of(target).on_gpu else ())]


def write_records(wanted: Iterable[MeasureInput], output: Path, seconds: float) -> None:
    """Measure trials, but those that the file has, for a number of seconds, and add their lines to the file."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    done, end, failures = keys_in(output), time.time() + seconds, Counter[str]()
    runner = autotvm.LocalRunner(number=5, repeat=6, min_repeat_ms=4)
    with closing(autotvm.measure_option(autotvm.LocalBuilder(), runner)) as option:
        others = (trial for trial in wanted if key_of(trial) not in done)
        for count, (trial, result) in enumerate(option.measure(others, lambda trial: None, lambda: time.time() > end)):
            append(output, [Record.of(trial, result)])
            if result.reason:
                failures[f"{trial.task.name}: {result.status.value}, {result.reason[:100]}"] += 1
            if count % 100 == 99:
                print(f"{count + 1} trials, of which {failures.total()} failed: {trial.task}", flush=True)
    for text, number in failures.most_common():
        print(number, text)


def main() -> None:
    defaults = {"algorithms": (), "target": "cuda", "problems": 12, "configs": 12, "seed": 0, "seconds": 1e9}
    options = options_of(__doc__, **defaults).parse_args()
    target = resolve_target(options.target)
    known = algorithms_of(target)
    algorithms = options.algorithms or known
    if unknown := [name for name in algorithms if name not in known]:
        raise InvalidArgumentError("algorithms", unknown[0], f"algorithms of {target.kind}: {', '.join(known)}")
    size = LARGE if backend_of(target).on_gpu else SMALL
    wanted = trials(algorithms, options.problems, options.configs, options.seed, target, size, FEW)
    write_records(wanted, options.output, options.seconds)


if __name__ == "__main__":
    main()
