"""The command `tvmconv calibrate`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import click

from .console import note, print_json, print_table, progress
from .options import JSON, command, option

if TYPE_CHECKING:
    from tvmconv.calibration.session import Calibration

KIND = click.Choice(["cuda", "llvm"])


@command()
def calibrate(
    target: str = option(
        "What to calibrate: cuda, the GPU of this machine, or llvm, its CPU.", default="cuda", type=KIND
    ),
    minutes: int = option("The most minutes that it takes.", default=5),
    as_json: bool = JSON,
) -> None:
    """Measure some 200 kernels on this machine, and fit to them the rates by which tvmconv chooses configurations.

    The rates are kept in your cache folder, and are used from then on. Kernels that were measured are kept too: the
    same command goes on after it was ended. Nothing is kept while other programs use the GPU or the CPU, or where its
    clock falls.
    """
    from tvmconv.autotvm.measure import measure_option
    from tvmconv.autotvm.measure.builder import LocalBuilder
    from tvmconv.autotvm.measure.packages import importing
    from tvmconv.autotvm.measure.runner import LocalRunner
    from tvmconv.calibration.steadiness import Clock, Processors
    from tvmconv.targets import backend_of, device_for, resolve_target

    with importing():
        from tvmconv.calibration import session

    device_for(target)  # without a GPU this fails, before processes are started
    resolved = resolve_target(target)
    on_gpu = backend_of(resolved).on_gpu
    runner = LocalRunner(number=5, repeat=3, min_repeat_ms=4, devices=[0] if on_gpu else None)
    with (
        closing(measure_option(LocalBuilder(), runner)) as how,
        closing(Clock() if on_gpu else Processors()) as gauge,
        progress(f"measuring kernels, {minutes} minutes at most"),
    ):
        found = session.calibrate(how, gauge, resolved, 60.0 * minutes)
    if as_json:
        print_json(found)
    else:
        print_calibration(found)


def print_calibration(found: Calibration) -> None:
    """Print what a calibration has changed."""
    import msgspec

    after = msgspec.to_builtins(found.after)
    rows = [[name, value, after[name]] for name, value in msgspec.to_builtins(found.before).items()]
    print_table(["rate", "before", "after"], rows)
    click.echo()
    print_table(
        ["choices by", "problems", "regret before", "after"],
        [[each.template, each.problems, each.before, each.after] for each in found.regrets],
    )
    note(f"fitted to {found.kernels} kernels on {found.device}: {found.trials}")
    if found.kept is None:
        note("the former rates choose better on these kernels, and stay in use")
    else:
        note(f"kept in {found.kept}, for targets of the model {found.model}")
