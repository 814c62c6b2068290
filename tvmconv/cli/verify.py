"""The command `tvmconv verify`."""

from __future__ import annotations

import shlex
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING

import click

from tvmconv.problem.errors import InvalidArgumentError, WrongResultError
from tvmconv.targets.threads import usable_cpus

from .console import note, print_json, progress
from .options import JSON, SEED, TARGET, Seconds, algorithm, command, option

if TYPE_CHECKING:
    from tvmconv.testing.conformance import How, Outcome
    from tvmconv.testing.trials import Trial

QUIET_SECONDS = 10.0
"""The seconds between two lines of progress where there is no terminal."""


@command()
def verify(
    target: str = TARGET,
    count: int = option(
        "The number of random convolutions; the first ones are the same for every number.", default=200
    ),
    seed: int = SEED,
    twin: bool = option("Run CUDA kernels on the CPU, their threads one by one.", "--serial-twin"),
    bounds: bool = option("On a CPU: turn each access past an array into a crash."),
    opened: bool = option("Leave batch, height or width open in all convolutions, not only in some.", "--open"),
    algorithm: str = algorithm("The algorithm of all convolutions, such as winograd; auto: all, and pruned weights."),
    case: str | None = option("Try this case alone, from the line that a failure prints.", metavar="JSON"),
    timeout: float = option(
        "The seconds that one convolution may take; with --serial-twin it takes long.", type=Seconds(), default=300.0
    ),
    parallel: int | None = option("The number of worker processes.  [default: one a core]"),
    as_json: bool = JSON,
) -> None:
    """Compare the results of kernels, of examples and of random convolutions, with a reference in float64.

    The examples of each way to compute a convolution come first. The random ones are depthwise, grouped and dense, of
    any stride, dilation, padding, dtype and epilogue, by each algorithm that the target has, and with pruned weights
    compiled in, in default and in random configurations. Some kernels are for any batch, height or width, and tried
    with three: the least that is allowed, one more than the kernel is chosen for, and three more. Kernels for another
    kind of CPU than this machine's run in QEMU.

    A kernel that is wrong, crashes or hangs is a failure. Each failure prints the command that tries it alone, and the
    others go on. The exit code is 5 if there is one.
    """
    from tvmconv.targets import backend_of, cross_triple, device_of, resolve_target
    from tvmconv.testing.conformance import How, conformance, described
    from tvmconv.testing.emulated import require_emulator
    from tvmconv.testing.trials import examples

    resolved = resolve_target(target)
    on_gpu = backend_of(resolved).on_gpu
    if twin and not on_gpu:
        raise InvalidArgumentError("target", target, "a CUDA target, with --serial-twin")
    if bounds and not twin and cross_triple(str(resolved)):
        raise InvalidArgumentError("target", target, "this machine's own kind of CPU, with --bounds")
    if bounds and on_gpu and not twin:
        raise InvalidArgumentError(
            "target", target, "a CPU, or --serial-twin, with --bounds: accesses of a GPU are not checked"
        )
    if not twin and (triple := cross_triple(str(resolved))):
        require_emulator(triple)
    elif not twin:
        device_of(resolved)
    how = How(str(resolved), twin, bounds, opened, None if algorithm == "auto" else algorithm)
    given = read_case(case) if case is not None else None
    if given is None:
        described(how, 0, seed)  # raises an error for an algorithm that the target does not have
    sources: list[int | Trial] = [given] if given else [*examples(resolved, opened, how.algorithm), *range(count)]
    jobs = min(len(sources), parallel or usable_cpus())

    start = time.monotonic()
    tally = Counter[str]()
    failures: list[Outcome] = []
    with closing(conformance(how, sources, seed, jobs, timeout)) as outcomes:
        for outcome in shown(outcomes, len(sources)):
            tally[kind_of(outcome.trial)] += 1
            if outcome.failure is not None:
                failures.append(outcome)
                if not as_json:
                    print_failure(outcome, how, target)
    seconds = time.monotonic() - start
    if as_json:
        facts = {"target": target, "serial_twin": twin, "bounds": bounds, "seed": seed, "seconds": round(seconds, 1)}
        print_json({**facts, "tried": dict(tally), "failures": failures})
    else:
        kinds = ", ".join(f"{number} {name}" for name, number in sorted(tally.items()))
        click.echo(f"{tally.total()} convolutions in {seconds:.0f} s, {len(failures)} failures: {kinds}")
    if failures:
        found = Counter(outcome.failure for outcome in failures)
        raise WrongResultError(", ".join(f"{number} x {failure}" for failure, number in found.items()))


def read_case(text: str) -> Trial:
    """Parse the trial that a failure has printed."""
    import msgspec

    from tvmconv.testing.trials import Trial

    try:
        return msgspec.json.decode(text, type=Trial)
    except msgspec.MsgspecError as error:
        raise InvalidArgumentError("case", text, f"the JSON that `tvmconv verify` prints ({error})") from None


def shown(outcomes: Iterator[Outcome], count: int) -> Iterator[Outcome]:
    """Yield the outcomes while progress is shown: on a terminal always, elsewhere in a line now and then."""
    said, failed = time.monotonic(), 0
    with progress(f"0/{count}") as display:
        for done, outcome in enumerate(outcomes, 1):
            failed += outcome.failure is not None
            text = f"{done}/{count}, {failed} failures"
            display.update(text)
            if not sys.stderr.isatty() and time.monotonic() - said > QUIET_SECONDS:
                said = time.monotonic()
                note(text)
            yield outcome


def print_failure(outcome: Outcome, how: How, target: str) -> None:
    """Print a failure with its reason, and the command that tries it alone."""
    import msgspec

    trial = outcome.trial
    once = "" if outcome.again else " (once: right when it was tried again)"
    knobs = "default configuration" if trial.knobs is None else f"knobs {trial.knobs}"
    click.echo(f"{outcome.failure}{once}: {trial.problem} by {trial.algorithm}, {knobs}: {outcome.reason}")
    flags = [flag for flag, is_set in (("--serial-twin", how.twin), ("--bounds", how.bounds)) if is_set]
    case = msgspec.json.encode(trial).decode()
    click.echo(f"  {shlex.join(['tvmconv', 'verify', '--target', target, *flags, '--case', case])}")


def kind_of(trial: Trial) -> str:
    """Return the kind of a trial, for the sum at the end."""
    open_sizes = f" for any {' and '.join(trial.open_sizes)}" if trial.open_sizes else ""
    return f"{trial.algorithm} {'default' if trial.knobs is None else 'random'}{open_sizes}"
