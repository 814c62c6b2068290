"""The command `tvmconv quantize`."""

from __future__ import annotations

from pathlib import Path

import click

from ..console import print_json, print_table, progress
from ..options import INPUT_FILE, JSON, MODEL, command, option, output


@command()
def quantize(
    model: Path = MODEL,
    data: Path = option(
        "Samples of the inputs, which tell the ranges of tensors: an array for each input, by its name, with the "
        "samples along the first axis.",
        type=INPUT_FILE,
        metavar="FILE.npz",
    ),
    output: Path = output("The file to write.", ".onnx", "FILE.onnx"),
    form: str = option(
        "The form of the result: qdq, operators in float32 between QuantizeLinear and DequantizeLinear; qoperator, "
        "operators on integers, such as QLinearConv.",
        "--format",
        type=click.Choice(("qdq", "qoperator")),
        default="qdq",
    ),
    as_json: bool = JSON,
) -> None:
    """Quantize MODEL, an ONNX file in float32, to integers, with ranges from samples of its inputs.

    ONNX Runtime does it: weights become int8 with a scale for each output channel, other tensors uint8. The table has
    the ratio of signal to noise of each convolution and linear layer, and of the outputs, in dB: 6 dB are a bit.
    `tvmconv build` and `tvmconv run` take the result.
    """
    from tvmconv.integrations.quantizing import quantize as quantize_model
    from tvmconv.integrations.quantizing import split
    from tvmconv.network.frontends.onnx.importer import read_onnx

    from .inputs import read_arrays

    samples = split(read_arrays(data, "data"), read_onnx(model))
    with progress(f"quantizing {model.name} with {len(samples)} samples"):
        found = quantize_model(model, output, samples, form)
    size = output.stat().st_size
    if as_json:
        layers = [{"name": each.name, "operator": each.operator, "snr_db": each.ratio} for each in found]
        print_json({"file": str(output), "bytes": size, "samples": len(samples), "layers": layers})
        return
    print_table(
        ["layer", "operator", "signal to noise, dB"],
        [[each.name, each.operator, f"{each.ratio:.1f}"] for each in found],
    )
    click.echo(f"{output}: {size / 1e6:,.2f} MB, of {model.stat().st_size / 1e6:,.2f} MB in float32")
