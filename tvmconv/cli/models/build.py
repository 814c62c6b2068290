"""The command `tvmconv build`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem.parameters import SPARSE_MODES

from ..console import print_json, print_table, progress
from ..options import (
    CHECK_INDICES,
    INPUT_SHAPES,
    JSON,
    MODEL,
    NETWORK_PRECISION,
    TARGET,
    Shapes,
    command,
    option,
    output,
    records_option,
)

if TYPE_CHECKING:
    from tvmconv.network import Layer


@command(records_option)
def build(
    model: Path = MODEL,
    output: Path = output("The file to write.", ".so", "FILE.so"),
    target: str = TARGET,
    shapes: Shapes | None = INPUT_SHAPES,
    sparse: str = option(
        "The weights to compile into the code, where zeros take no time: auto, those with at least 70% zeros that are "
        "estimated to become faster; always, all; never, none.",
        type=click.Choice(SPARSE_MODES),
        default="auto",
    ),
    precision: str = NETWORK_PRECISION,
    check_indices: bool = CHECK_INDICES,
    as_json: bool = JSON,
) -> None:
    """Compile MODEL, an ONNX or .pt2 file, into one library, and list what runs each of its convolutions.

    `tvmconv run` and `tvmconv.load` take the library. A CUDA target needs no GPU.
    """
    from tvmconv.network import build as build_network
    from tvmconv.network import import_model
    from tvmconv.targets import resolve_target

    resolved = resolve_target(target)
    start = time.perf_counter()
    with progress(f"building {model.name}"):
        imported = import_model(model, shapes=shapes)
        network = build_network(imported, resolved, sparse, precision, check_indices=check_indices)
        network.export(output)
    seconds = time.perf_counter() - start

    layers = _merged(network.layers)
    size = output.stat().st_size
    if as_json:
        built = {"file": str(output), "bytes": size, "target": json.loads(str(resolved)), "seconds": seconds}
        print_json({**built, "layers": layers})
        return
    if layers:
        print_table(
            ["convolution", "count", "kernel", "why"],
            [[layer["description"], layer["count"], layer["kernel"], layer["reason"]] for layer in layers],
        )
    click.echo(f"{output}: {size / 1e6:,.1f} MB for {resolved.kind.name}, built in {seconds:.1f} s")


def _merged(layers: tuple[Layer, ...]) -> list[dict[str, Any]]:
    """Return the layers as records; those that compute the same with the same kernel are counted in one."""
    same: dict[tuple[str, str, str], list[Layer]] = {}
    for layer in layers:
        same.setdefault((layer.convolution.description, layer.kernel, layer.reason), []).append(layer)
    return [
        {
            "description": description,
            "workload": first.convolution.workload,
            "kernel": kernel,
            "config": first.config,
            "reason": reason,
            "count": len([first, *others]),
            "names": [layer.convolution.name for layer in (first, *others)],
        }
        for (description, kernel, reason), (first, *others) in same.items()
    ]
