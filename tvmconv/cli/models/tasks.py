"""The command `tvmconv tasks`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..console import note, print_json, print_table, progress
from ..options import INPUT_SHAPES, JSON, MODEL, Shapes, command

if TYPE_CHECKING:
    from tvmconv.network import Convolution


@dataclass(frozen=True)
class Task:
    """A convolution of a model, and the names of all the layers that compute the same."""

    convolution: Convolution
    names: list[str]


@command()
def tasks(model: Path = MODEL, shapes: Shapes | None = INPUT_SHAPES, as_json: bool = JSON) -> None:
    """List the convolutions of MODEL, an ONNX or .pt2 file: their FLOPs, and whether tvmconv or TVM computes them.

    Equal ones are one row. Linear layers of matrices are among them, as convolutions of one pixel. FLOPs are two for
    each multiply-add; the total counts every layer. A build changes some of these tasks, for example their layout:
    `tvmconv tune --dry-run` lists those of a build.
    """
    found = find_tasks(model, shapes)
    total = sum((task.convolution.flops or 0) * len(task.names) for task in found)
    if as_json:
        print_json({"tasks": [_record(number, task) for number, task in enumerate(found, 1)], "flops": total})
        return
    print_table(
        ["#", "convolution", "layout", "count", "MFLOPs", "kernel"],
        [
            [number, task.convolution.description, task.convolution.layout, len(task.names), _mega(task), _kernel(task)]
            for number, task in enumerate(found, 1)
        ],
    )
    layers = sum(len(task.names) for task in found)
    click.echo(f"{layers} convolutions, {len(found)} different, {total / 1e6:,.1f} MFLOPs in all")
    if any(task.convolution.flops is None for task in found):
        note("convolutions with sizes that are known only when the model runs are not in the total")
    if assumed := {_assumed(task.convolution) for task in found if task.convolution.open_sizes}:
        note(f"where sizes are open, FLOPs are those of {'; '.join(sorted(assumed))}")


def find_tasks(model: Path, shapes: Shapes | None) -> list[Task]:
    """Return the model's tasks in graph order; their numbers on the command line count from 1."""
    from tvmconv.network import import_model

    with progress(f"importing {model.name}"):
        convolutions = import_model(model, shapes=shapes).convolutions()
    names: dict[Convolution, list[str]] = {}
    for convolution in convolutions:
        names.setdefault(replace(convolution, name=""), []).append(convolution.name)
    return [Task(convolution, same) for convolution, same in names.items()]


def _record(number: int, task: Task) -> dict[str, object]:
    convolution = task.convolution
    return {
        "number": number,
        "description": convolution.description,
        "workload": convolution.workload,
        "layout": convolution.layout,
        "flops": convolution.flops,
        "count": len(task.names),
        "names": task.names,
        "obstacle": convolution.obstacle,
    }


def _assumed(convolution: Convolution) -> str:
    """Return the sizes that stand for a convolution's open ones, as in "batch 1"."""
    return ", ".join(f"{name} {getattr(convolution.workload, name)}" for name in convolution.open_sizes)


def _mega(task: Task) -> float | str:
    return "unknown" if task.convolution.flops is None else task.convolution.flops / 1e6


def _kernel(task: Task) -> str:
    return f"TVM: {task.convolution.obstacle}" if task.convolution.obstacle else "tvmconv"
