"""The command `tvmconv bench accuracy`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from tvmconv.problem.errors import InvalidArgumentError

from ..console import note, print_json, print_table
from ..options import JSON, TARGET, command, option
from .run import collected

if TYPE_CHECKING:
    from tvmconv.bench.accuracy import Errors, Row


@command()
def accuracy(
    target: str = TARGET,
    twin: bool = option("Run CUDA kernels on the CPU, without PyTorch.", "--serial-twin"),
    as_json: bool = JSON,
) -> None:
    """Measure how exact convolutions are in each type and precision, on several kinds of data.

    Errors are those beside a float64 reference, largest / root mean square over the outputs, in roundings of the type
    (2^-24, 2^-11 of float16, 2^-8 of bfloat16) of the sum of an output's own absolute products. "fma" is a sum of
    float32 multiply-adds, "fma-tf32" of factors rounded to TF32; PyTorch takes part where it is installed. tvmconv
    takes an algorithm that is not for "strict", such as that for tensor cores, where there is one; a serial twin
    multiplies and adds whole float32 numbers. Below are results that break tvmconv's promise for the precision.
    """
    from tvmconv.bench.accuracy import measure_accuracy
    from tvmconv.bench.report import versions
    from tvmconv.targets import backend_of, device_facts, device_of, resolve_target

    resolved = resolve_target(target)
    if twin and not backend_of(resolved).on_gpu:
        raise InvalidArgumentError("target", target, "a CUDA target, with --serial-twin")
    kind = "llvm" if twin else resolved.kind.name
    if not twin:
        device_of(resolved)
    device, packages = device_facts(kind), versions(kind)
    facts = {"target": json.loads(str(resolved)), "serial_twin": twin, "device": device, "versions": packages}
    with collected(measure_accuracy(resolved, twin, note)) as (rows, _):
        if as_json:
            print_json({**facts, "rows": rows})
        else:
            _print(rows)
            click.echo(f"{device}; {', '.join(f'{package} {version}' for package, version in packages.items())}")


def _print(rows: Sequence[Row]) -> None:
    contenders = list(dict.fromkeys(name for row in rows for name in row.errors))
    print_table(
        ["type", "data", *contenders],
        [[row.dtype, row.name, *(_cell(row.errors.get(name)) for name in contenders)] for row in rows],
    )
    for row in rows:
        for kind, absent in (("breaks the promise", row.broken), ("failed", row.failed)):
            for name, message in absent.items():
                click.echo(f"{row.dtype}, {row.name}: {name} {kind}: {message}")
    templates = {(name, template) for row in rows for name, template in row.templates.items()}
    click.echo(", ".join(f"{name} by {template}" for name, template in sorted(templates)))


def _cell(errors: Errors | None) -> str | None:
    if errors is None:
        return None
    if errors.largest is None or errors.rms is None:
        return "not finite"
    return f"{errors.largest:.3g} / {errors.rms:.3g}"
