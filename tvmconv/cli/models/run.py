"""The command `tvmconv run`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from math import nan
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from tvmconv.problem.errors import InvalidArgumentError, WrongResultError
from tvmconv.problem.precision import DEFAULT

from ..console import note, print_json, print_table, progress
from ..options import (
    CHECK_INDICES,
    INPUT_FILE,
    INPUT_SHAPES,
    JSON,
    NETWORK_PRECISION,
    SEED,
    Shapes,
    argument,
    command,
    option,
    output,
    records_option,
)

if TYPE_CHECKING:
    import tvm

    from tvmconv.checking.verify import Array
    from tvmconv.network import Network, TensorSpec
    from tvmconv.problem import Problem
    from tvmconv.runtime.operator import Operator

LIBRARY = b"\x7fELF"
"""The first bytes of a shared library."""

PROGRAM = ".pt2"
"""The ending of the names of files of `torch.export.save`."""


@command(records_option)
def run(
    file: Path = argument(metavar="FILE|MODEL", type=INPUT_FILE),
    inputs: Path | None = option(
        "The arrays of inputs, by name; an input that the file lacks is filled.", "-i", type=INPUT_FILE, metavar="X.npz"
    ),
    outputs: Path | None = output("The file to write the outputs to, by name.", ".npz", "Y.npz"),
    fill_mode: str = option(
        "The elements of inputs that are filled; random: normal numbers, and 0 or 1 for integers and booleans.",
        type=click.Choice(["random", "ones"]),
        default="random",
    ),
    seed: int = SEED,
    target: str | None = option(
        "The machine to compile MODEL for, as in `tvmconv build`; FILE is compiled already.  [default: llvm]"
    ),
    verify: str | None = option(
        "Compare the outputs of MODEL with those that this program computes.", type=click.Choice(["onnxruntime"])
    ),
    print_time: bool = option("Measure the time of a call, without the copies to and from a GPU."),
    repeat: int = option("With --print-time or --profile: the number of measurements.", default=10),
    number: int = option("With --print-time: the number of runs in each measurement.", default=1),
    profile: bool = option(
        "Measure the time of each kernel, one after the other; on a GPU with its launch, and without CUDA graphs."
    ),
    precision: str = NETWORK_PRECISION,
    check_indices: bool = CHECK_INDICES,
    shapes: Shapes | None = INPUT_SHAPES,
    as_json: bool = JSON,
) -> None:
    """Run FILE, a library of `tvmconv build`, or MODEL, an ONNX or .pt2 file, and describe its outputs.

    Inputs that are filled have an open batch of 1; --input-shapes gives sizes that FILE leaves open too.

    The exit code is 5 if --verify finds a difference.
    """
    import numpy as np
    import tvm

    from tvmconv.checking.verify import compare, run_onnxruntime
    from tvmconv.network import Network
    from tvmconv.targets import device_of

    from .inputs import fill, read_inputs, with_sizes

    network = load_network(file, target, verify, precision, check_indices, shapes)
    device = network.device if isinstance(network, Network) else device_of(network.target)
    input_specs, output_specs = signature(network)
    arrays = read_inputs(inputs, input_specs) if inputs else {}
    generator = np.random.default_rng(seed)
    for spec in with_sizes(input_specs, {name: array.shape for name, array in arrays.items()}, shapes or {}):
        if spec.name not in arrays:
            arrays[spec.name] = fill(spec, fill_mode, generator)

    operands = {name: tvm.runtime.tensor(array, device) for name, array in arrays.items()}
    with progress("running"):
        results = network(**operands)
        results = results if isinstance(results, tuple) else (results,)
        named = {spec.name: result.numpy() for spec, result in zip(output_specs, results, strict=True)}
        seconds = measure(lambda: network(**operands), device, repeat, number) if print_time else None
        profiled = network.profile(**operands, repeat=repeat) if profile else None
        reference = run_onnxruntime(file, arrays, list(named)) if verify else {}
    multiplied = network.multiplied if isinstance(network, Network) else {network.workload.dtype}
    comparisons = compare(named, reference, multiplied)
    if outputs:
        np.savez(outputs, **named)

    described = [describe(name, array) for name, array in named.items()]
    if as_json:
        target = network.target_json if isinstance(network, Network) else str(network.target)
        data = {"target": json.loads(target), "outputs": described, "seconds": seconds}
        data["profile"] = None if profiled is None else [asdict(row) for row in profiled.rows]
        print_json({**data, "comparisons": [{**asdict(c), "agrees": c.agrees} for c in comparisons]})
    else:
        print_table(list(described[0]), [list(output.values()) for output in described])
        if seconds is not None:
            low, middle, high = (1000 * pick(seconds) for pick in (min, median, max))
            click.echo(f"time: {middle:.4g} ms (median of {repeat}), {low:.4g} to {high:.4g} ms")
        if profiled is not None:
            click.echo(str(profiled))
        for found in comparisons:
            noise = f", {found.ratio:.1f} dB of signal to noise" if multiplied - {"float32"} else ""
            differs = f"differs by at most {found.error:.3g}, allowed {found.bound:.3g}{noise}"
            click.echo(f"{verify}: {found.output} {differs}")
    for name, expected in reference.items():
        if expected.size > 1 and (expected == expected.flat[0]).all():
            note(f"every element of {name} is {expected.flat[0]} in {verify}'s result too: agreement proves little")
    if wrong := [found.output for found in comparisons if not found.agrees]:
        raise WrongResultError(f"{', '.join(wrong)} of {file} differs from what {verify} computes by more than allowed")


def load_network(
    file: Path,
    target: str | None,
    verify: str | None,
    precision: str,
    check_indices: bool,
    shapes: Shapes | None,
) -> Network | Operator:
    """Load the library in the file, or build its model."""
    with file.open("rb") as opened:
        is_library = opened.read(len(LIBRARY)) == LIBRARY
    if not is_library:
        if verify is not None and file.suffix == PROGRAM:
            raise InvalidArgumentError("verify", verify, "none for a .pt2 file: ONNX Runtime takes an ONNX file")
        from tvmconv.network import build, import_model
        from tvmconv.targets import device_of, resolve_target

        resolved = resolve_target(target or "llvm")
        device_of(resolved)  # a network that cannot run here is not worth building
        with progress(f"building {file.name}"):
            imported = import_model(file, shapes=shapes)
            return build(imported, resolved, precision=precision, check_indices=check_indices)
    given = None if precision == DEFAULT else precision
    unchecked = None if check_indices else "not"
    options = (("target", target), ("verify", verify), ("precision", given), ("check_indices", unchecked))
    for name, value in options:
        if value is not None:
            raise InvalidArgumentError(name, value, "none for a library, which is built already: it is for a model")
    from tvmconv.network.loading import load

    with progress(f"loading {file.name}"):
        return load(file)


def signature(network: Network | Operator) -> tuple[Sequence[TensorSpec], Sequence[TensorSpec]]:
    """Return the inputs and the outputs in order; the sizes that an operator leaves open have names."""
    from tvmconv.network import Network, TensorSpec

    if isinstance(network, Network):
        return network.inputs, network.outputs
    specs = [TensorSpec(name, shape, dtype) for name, (shape, dtype) in network.workload.operands.items()]
    inputs = [replace(spec, shape=open_shape(spec, network.problem)) for spec in specs[:-1]]
    return inputs, specs[-1:]


def open_shape(spec: TensorSpec, problem: Problem) -> tuple[int | str, ...]:
    """Return the shape of an operator's input, with names for open sizes; planes of a residual are those of outputs."""
    layouts = {"x": problem.workload.x_layout, "residual": problem.workload.output_layout}
    if spec.name not in layouts:
        return spec.shape
    row, column = layouts[spec.name].spatial
    planes = "" if spec.name == "x" else "output "
    axes = {"batch": (0, "batch"), "height": (row, f"{planes}height"), "width": (column, f"{planes}width")}
    names = dict(axes[size] for size in problem.open_sizes)
    return tuple(names.get(axis, size) for axis, size in enumerate(spec.shape))


def measure(call: Callable[[], object], device: tvm.runtime.Device, repeat: int, number: int) -> list[float]:
    """Return the seconds that a call takes, `repeat` times the mean of `number` calls one after the other."""
    seconds = []
    for _ in range(repeat):
        device.sync()
        start = time.perf_counter()
        for _ in range(number):
            call()
        device.sync()
        seconds.append((time.perf_counter() - start) / number)
    return seconds


def describe(name: str, array: Array) -> dict[str, Any]:
    """Describe an output in numbers; its extremes and mean are NaN where it has no elements."""
    values = array.astype("float64")
    low, high, mean = (values.min(), values.max(), values.mean()) if values.size else (nan, nan, nan)
    return {
        "name": name,
        "shape": array.shape,
        "dtype": str(array.dtype),
        "min": float(low),
        "max": float(high),
        "mean": float(mean),
    }
