"""The command `tvmconv inspect`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError
from tvmconv.problem.precision import WORDS
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import BACKENDS, backend_of, resolve_target

from ..console import print_json, print_table, progress
from ..options import (
    DIRECTION,
    INPUT_SHAPES,
    JSON,
    NETWORK_PRECISION,
    TARGET,
    Shapes,
    argument,
    command,
    option,
    records_option,
)
from .tasks import find_tasks

if TYPE_CHECKING:
    import tvm

    from tvmconv.runtime.operator import Operator


@command(records_option)
def inspect(
    subject: str = argument(metavar="WORKLOAD|MODEL"),
    layer: int | None = option("The number of a convolution of MODEL, as `tvmconv tasks` lists them.", metavar="N"),
    target: str = TARGET,
    show: str = option(
        "What to show: config, the values of the kernel's knobs; tvmscript, its loops, as TVM prints them; source, the "
        "CUDA C++ or LLVM IR made of them; asm for a CPU, ptx for CUDA, what the compiler makes of that; resources, "
        "the registers and the memory of a CUDA kernel.",
        type=click.Choice(list(dict.fromkeys(view for backend in BACKENDS.values() for view in backend.views))),
        default="config",
    ),
    passes: bool = option("Show the whole MODEL as TVM's Relax instead: as it is imported, and after each pass."),
    precision: str = NETWORK_PRECISION,
    direction: str = DIRECTION,
    shapes: Shapes | None = INPUT_SHAPES,
    as_json: bool = JSON,
) -> None:
    """Show the kernel of one convolution: its configuration, its loops, or the code made of them.

    WORKLOAD describes a convolution in JSON, as `ConvWorkload.to_json` does, or is a file with that; MODEL is an ONNX
    or .pt2 file, of which --layer chooses a convolution. A CUDA target needs no GPU.

    The kernel is that for tensors in NCHW. In a network a convolution may have another layout, or share a kernel with
    the next one: `tvmconv build` lists those kernels, and --passes shows what becomes of the whole model. A gradient by
    the input with a stride of 1 is a convolution with mirrored taps.
    """
    from tvmconv.dispatch import select
    from tvmconv.problem import Problem
    from tvmconv.runtime.operator import compile_problem

    resolved = resolve_target(target)
    if passes:
        _show_passes(subject, resolved, precision, shapes, as_json)
        return
    if precision not in WORDS:
        raise InvalidArgumentError("precision", precision, f"one of {', '.join(WORDS)}; others are for --passes")
    if show not in (views := backend_of(resolved).views):
        raise InvalidArgumentError("show", show, f"one of {', '.join(views)} for target {target}")
    workload = find_workload(subject, layer, shapes)
    problem = Problem(workload, precision=precision, direction=direction).as_convolution
    with progress(f"compiling {problem}"):
        operator = compile_problem(problem, select(problem, resolved), resolved)
        content = _content(operator, show)
    selection = {"schedule": operator.selection.name, "reason": operator.selection.reason}
    if as_json:
        described = {"workload": workload, "precision": problem.precision, "direction": direction}
        print_json({**described, "target": json.loads(str(resolved)), **selection, show: content})
    elif show == "config":
        print_table(["workload", str(problem)], [*selection.items(), *content.items()])
    elif show == "resources":
        print_table(list(content[0]), [list(kernel.values()) for kernel in content])
    else:
        click.echo(content)


def _show_passes(subject: str, target: tvm.target.Target, precision: str, shapes: Shapes | None, as_json: bool) -> None:
    """Show a model's module after its import, and after each pass for the target."""
    from tvmconv.network import import_model
    from tvmconv.network.building import modules_behind_passes

    path = Path(subject)
    if subject.lstrip().startswith("{") or not path.is_file():
        raise InvalidArgumentError("MODEL", subject, "a file with a model, of which --passes shows the module")
    with progress(f"passes over {path.name}"):
        model = import_model(path, shapes=shapes)
        texts = [
            (name, str(mod.script(show_meta=False))) for name, mod in modules_behind_passes(model, target, precision)
        ]
    if as_json:
        print_json([{"pass": name, "module": text} for name, text in texts])
        return
    last = ""
    for name, text in texts:
        click.echo(f"# behind {name}: no change" if text == last else f"# behind {name}\n{text}\n")
        last = text


def find_workload(subject: str, layer: int | None, shapes: Shapes | None) -> ConvWorkload:
    """Return the workload that the arguments of the command name."""
    if not subject.lstrip().startswith("{"):
        path = Path(subject)
        if not path.is_file():
            raise InvalidArgumentError("WORKLOAD|MODEL", subject, "a workload as JSON, or a file with one or a model")
        with path.open("rb") as file:
            if not file.read(1024).lstrip().startswith(b"{"):
                return _layer(path, layer, shapes)
        subject = path.read_text(errors="replace")
    if layer is not None:
        raise InvalidArgumentError("layer", layer, "none for a single workload: it chooses one of a model")
    return ConvWorkload.from_json(subject)


def _layer(model: Path, layer: int | None, shapes: Shapes | None) -> ConvWorkload:
    if layer is None:
        raise click.UsageError("give --layer N with a model; `tvmconv tasks` lists the numbers of its convolutions")
    tasks = find_tasks(model, shapes)
    if layer > len(tasks):
        raise InvalidArgumentError("layer", layer, f"a number from 1 to {len(tasks)}, as `tvmconv tasks` lists them")
    convolution = tasks[layer - 1].convolution
    if convolution.workload is None or convolution.obstacle is not None:
        raise UnsupportedModelError(f"layer {layer}, {convolution.description}: {convolution.obstacle}")
    return convolution.workload


def _content(operator: Operator, show: str) -> Any:
    if show == "config":
        return asdict(operator.selection.config)
    if show == "resources":
        return [asdict(kernel) for kernel in operator.resources()]
    return operator.source(show)
