"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from math import isnan
from pathlib import Path
from typing import Any

import click

from tvmconv.problem import DIRECTIONS, FORWARD
from tvmconv.problem.precision import DEFAULT, NETWORK_WORDS, WORDS
from tvmconv.targets.threads import set_num_threads

Shapes = dict[str, list[int | str]]
"""The shapes of inputs, by name, with text for open sizes."""


class OutputFile(click.Path):
    """A file to write: its folder and how its name ends are checked before any work, not after a long build."""

    def __init__(self, suffix: str | None = None) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self.suffix = suffix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if self.suffix is not None and path.suffix != self.suffix:
            self.fail(f"{str(path)!r} does not end in {self.suffix}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}", param, ctx)
        return path


class Positives(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has none
    """Positive integers in text such as "1,32"."""

    name = "integers"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        texts = [text.strip() for text in str(value).split(",")]
        if not all(text.isdecimal() and int(text) for text in texts):
            self.fail(f"{value!r} is no list of positive integers such as 1,32", param, ctx)
        return list(dict.fromkeys(map(int, texts)))


class Algorithm(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has none
    """An algorithm for weights that are operands, or "auto", of those that are registered when a command runs."""

    name = "algorithm"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value == "auto":  # the default, for which --help need not load the templates
            return "auto"
        from tvmconv.dispatch import dense_algorithms

        if value not in (known := dense_algorithms()):
            self.fail(f"{value!r} is not one of auto, {', '.join(known)}", param, ctx)
        return str(value)


class Seconds(click.FloatRange):
    """A time in seconds that is neither zero nor NaN, which is within any bounds."""

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if isnan(seconds):
            self.fail(f"{value!r} is not a number", param, ctx)
        return seconds


def address(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[str, int] | None:
    """Parse the host and the port in text such as "127.0.0.1:9190"."""
    if value is None:
        return None
    host, _, port = value.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
        raise click.BadParameter(f"{value!r} is not of the form HOST:PORT", ctx, param)
    return host, int(port)


def input_shapes(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> Shapes | None:
    """Parse the shapes in texts such as "x:[1,3,224,224]" or "x:[n<=64,3,8,8]", by name; return None for no text."""
    shapes = {}
    for text in value:
        found = re.fullmatch(r"(.+):\[([\w\s<=,]+)\]", text.strip())
        if found is None:
            raise click.BadParameter(f"{text!r} is not of the form NAME:[1,3,224,224]", ctx, param)
        sizes = [size.strip() for size in found[2].split(",")]
        shapes[found[1]] = [int(size) if size.isdecimal() else size for size in sizes]
    return shapes or None


def apply_records(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Apply a tuning log until the command ends."""
    if value is not None:
        from tvmconv.autotvm.history import apply_history_best

        ctx.with_resource(apply_history_best(value))


def use_threads(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    """Let TVM compute with so many threads."""
    if value is not None:
        set_num_threads(value)


POSITIVE = click.IntRange(min=1)

INPUT_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)

model_argument = click.argument("model", type=INPUT_FILE)

input_shapes_option = click.option(
    "--input-shapes",
    "shapes",
    multiple=True,
    metavar="NAME:[N,...]",
    callback=input_shapes,
    help="The shape of an input of MODEL, for sizes that it leaves open, or to leave some open, as in "
    "x:[n,3,224,224] or x:[n<=64,3,224,224]; once for each such input.",
)

json_option = click.option("--json", "as_json", is_flag=True, help="Print data as JSON on stdout, and nothing else.")

target_option = click.option(
    "--target",
    default="llvm",
    help="The target: llvm, cuda, a tag of TVM such as nvidia/nvidia-h100, or a target as JSON.",
)

precision_option = click.option(
    "--precision",
    type=click.Choice(WORDS),
    default=DEFAULT,
    help="What is promised of results with float32 operands: strict, as sums of fused multiply-adds; float32, as "
    "frameworks have it; tf32, with factors rounded to TF32.",
)

direction_option = click.option(
    "--direction",
    type=click.Choice(DIRECTIONS),
    default=FORWARD,
    help="What is computed: a convolution, or the gradient of a depthwise one by its input or by its weight.",
)

network_precision_option = click.option(
    "--precision",
    type=click.Choice(NETWORK_WORDS),
    default=DEFAULT,
    help="What is promised of a network in float32: that of `tvmconv inspect` for its convolutions and linear layers; "
    "float16 or bfloat16, with their factors, and tensors between them, in half precision, and sums in float32.",
)

check_indices_option = click.option(
    "--no-check-indices",
    "check_indices",
    is_flag=True,
    flag_value=False,
    default=True,
    help="Bring indices that are out of range into range, and do not look for them: a call takes a little less.",
)

threads_option = click.option(
    "--threads",
    type=POSITIVE,
    expose_value=False,
    callback=use_threads,
    help="The number of threads on a CPU, for all contenders alike.  [default: one for each physical core]",
)

records_option = click.option(
    "--tuning-records",
    type=INPUT_FILE,
    metavar="LOG",
    expose_value=False,
    callback=apply_records,
    help="Use the best configurations of a log of `tvmconv tune`, before those that tvmconv has.",
)
