"""The command `tvmconv build`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .console import print_json, print_table, progress
from .options import (
    OutputFile,
    Shapes,
    check_indices_option,
    input_shapes_option,
    json_option,
    model_argument,
    network_precision_option,
    records_option,
    target_option,
)

if TYPE_CHECKING:
    from tvmconv.network import Layer


@click.command()
@model_argument
@click.option("-o", "--output", type=OutputFile(".so"), required=True, metavar="FILE.so", help="The file to write.")
@target_option
@input_shapes_option
@records_option
@click.option(
    "--sparse",
    type=click.Choice(("auto", "always", "never")),
    default="auto",
    help="The weights to compile into their kernels, where nothing is left of their zeros.",
)
@network_precision_option
@check_indices_option
@json_option
def build(
    model: Path,
    output: Path,
    target: str,
    shapes: Shapes | None,
    sparse: str,
    precision: str,
    check_indices: bool,
    as_json: bool,
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
    merged: dict[tuple[str, str, str], dict[str, Any]] = {}
    for layer in layers:
        key = layer.convolution.description, layer.kernel, layer.reason
        record = merged.setdefault(
            key,
            {
                "description": layer.convolution.description,
                "workload": layer.convolution.workload,
                "kernel": layer.kernel,
                "config": layer.config,
                "reason": layer.reason,
                "count": 0,
                "names": [],
            },
        )
        record["count"] += 1
        record["names"].append(layer.convolution.name)
    return list(merged.values())
