"""Commands whose parameters declare their options, and the options that several commands share.

`rounds: int = option("The number of rounds.", default=9)` is the option `--rounds`, a positive number. A parameter
that is a dataclass stands for the options that its fields declare.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from inspect import signature
from math import isnan
from pathlib import Path
from tempfile import TemporaryFile
from types import NoneType
from typing import Any, cast, get_args, get_type_hints

import click

from tvmconv.problem import DIRECTIONS, FORWARD
from tvmconv.problem.dtypes import DTYPES
from tvmconv.problem.precision import DEFAULT, NETWORK_WORDS, WORDS
from tvmconv.targets.threads import set_num_threads

POSITIVE = click.IntRange(min=1)

INPUT_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)


@dataclass(frozen=True)
class Declared:
    """The declaration of an option, or of an argument, of click."""

    help: str | None
    flags: tuple[str, ...] = ()
    """The flags; without a long one that is the parameter's name."""
    more: dict[str, Any] = field(default_factory=dict)

    def parameter(self, name: str, kind: Any) -> click.Parameter:
        """Return the parameter of click for one with a type: a bool is a flag, an int positive, None is allowed."""
        types = set(get_args(kind)) - {NoneType} if NoneType in get_args(kind) else {kind}
        if self.help is None:
            return click.Argument([name], **self.more)
        more = {"help": self.help, **self.more}
        if types == {bool}:
            more["is_flag"] = True
        elif types == {int}:
            more.setdefault("type", POSITIVE)
        if types == {kind} and not more.keys() & {"is_flag", "default", "multiple"}:
            more["required"] = True
        is_long = any(flag.startswith("--") for flag in self.flags)
        flags = self.flags if is_long else (*self.flags, f"--{name.replace('_', '-')}")
        return click.Option([name, *flags], **more)


def option(text: str, *flags: str, **more: Any) -> Any:
    """Return the declaration of an option with a text for its help, and with what `click.Option` takes."""
    return Declared(text, flags, more)


def argument(**more: Any) -> Any:
    """Return the declaration of an argument, with what `click.Argument` takes."""
    return Declared(None, more=more)


def command(*effects: click.Option) -> Callable[[Callable[..., None]], click.Command]:
    """Return a decorator that makes a command of a function, with options whose effect is all that they have."""

    def decorated(function: Callable[..., None]) -> click.Command:
        groups = {name: hint for name, hint in get_type_hints(function).items() if is_dataclass(hint)}

        def run(**given: Any) -> None:
            for name, options in groups.items():
                given[name] = cast(Any, options)(**{each.name: given.pop(each.name) for each in fields(options)})
            function(**given)

        run.__doc__ = function.__doc__
        parameters = [*_parameters(function), *effects]
        return click.command(function.__name__.replace("_", "-"), params=parameters)(run)

    return decorated


def _parameters(of: Callable[..., Any]) -> Iterator[click.Parameter]:
    """Yield the parameters of a function, and of the dataclasses among its parameters, in their order."""
    hints = get_type_hints(of)
    for name, parameter in signature(of).parameters.items():
        if is_dataclass(hints[name]):
            yield from _parameters(cast(Any, hints[name]))
        else:
            yield parameter.default.parameter(name, hints[name])


class OutputFile(click.Path):
    """A file to write: the end of its name, and that its folder can be written to, are checked before a long build."""

    def __init__(self, suffix: str | None = None) -> None:
        super().__init__(dir_okay=False, writable=True, path_type=Path)
        self.suffix = suffix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(str(super().convert(value, param, ctx)))
        if self.suffix is not None and path.suffix != self.suffix:
            self.fail(f"{str(path)!r} does not end in {self.suffix}", param, ctx)
        if not path.parent.is_dir():
            self.fail(f"there is no folder {str(path.parent)!r}", param, ctx)
        if not path.exists():
            try:
                TemporaryFile(dir=path.parent).close()
            except OSError as error:
                self.fail(f"{str(path)!r} cannot be written: {error.strerror}", param, ctx)
        return path


class Parsed(click.ParamType):  # type: ignore[type-arg]  # click 8.1 has none
    """Text that a function parses; it raises ValueError for text that the complaint is about."""

    def __init__(self, name: str, parse: Callable[[str], Any], complaint: str) -> None:
        self.name, self.parse, self.complaint = name, parse, complaint

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value.strip()) if isinstance(value, str) else value
        except ValueError:
            self.fail(f"{value!r} {self.complaint}", param, ctx)


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


def matched(pattern: str, text: str) -> re.Match[str]:
    """Return the match of a whole text; raise ValueError where it does not match."""
    if (match := re.fullmatch(pattern, text)) is None:
        raise ValueError(text)
    return match


def names(text: str) -> list[str]:
    """Parse the names in text such as "pytorch,tvm"."""
    return [name.strip() for name in text.split(",")]


def address(text: str) -> tuple[str, int]:
    """Parse the host and the port in text such as "127.0.0.1:9190"."""
    match = matched(r"(.+):(\d+)", text)
    if not 0 < int(match[2]) < 2**16:
        raise ValueError(text)
    return match[1], int(match[2])


def input_shape(text: str) -> tuple[str, list[int | str]]:
    """Parse the name and the shape in text such as "x:[1,3,224,224]" or "x:[n<=64,3,8,8]"."""
    match = matched(r"(.+):\[([\w\s<=,]+)\]", text)
    sizes = [size.strip() for size in match[2].split(",")]
    return match[1], [int(size) if size.isdecimal() else size for size in sizes]


def apply_records(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
    """Apply a tuning log until the command ends."""
    if value is not None:
        from tvmconv.autotvm.history import apply_history_best

        ctx.with_resource(apply_history_best(value))


def use_threads(ctx: click.Context, param: click.Parameter, value: int | None) -> None:
    """Let TVM compute with a number of threads."""
    if value is not None:
        set_num_threads(value)


NAMES = Parsed("names", names, "is no list of names")
ADDRESS = Parsed("address", address, "is not of the form HOST:PORT")
SHARE = click.FloatRange(0, 1, max_open=True)

JSON = option("Print data as JSON on stdout, and nothing else.", "--json")

TARGET = option(
    "The machine to compile for: llvm, this CPU; cuda, this GPU; a name that TVM knows, such as nvidia/nvidia-h100; or "
    "a target of TVM as JSON.",
    default="llvm",
)

MODEL = argument(type=INPUT_FILE)

Shapes = dict[str, list[int | str]]
"""The shapes of inputs, by name, with text for open sizes."""

INPUT_SHAPES = option(
    "The shape of an input of MODEL: a number fixes a size that MODEL leaves open, and a name leaves one open, as in "
    "x:[n,3,224,224] or x:[n<=64,3,224,224]. Give it once for each such input.",
    "--input-shapes",
    multiple=True,
    metavar="NAME:[N,...]",
    type=Parsed("shape", input_shape, "is not of the form NAME:[1,3,224,224]"),
    callback=lambda ctx, param, value: dict(value) or None,
)

PRECISION = option(
    "How exact results in float32 are: strict, each as exact as a sum in float32; float32, about as exact as those of "
    "other frameworks; tf32, less exact and faster on a GPU, with factors of 11 significant bits.",
    type=click.Choice(WORDS),
    default=DEFAULT,
)

NETWORK_PRECISION = option(
    "How exact a network in float32 is: strict, each sum as exact as one in float32; float32, about as exact as in "
    "other frameworks; tf32, less exact and faster on a GPU, with factors of 11 significant bits; float16 or bfloat16, "
    "with weights, and tensors between layers, in 16 bits, and sums in float32.",
    type=click.Choice(NETWORK_WORDS),
    default=DEFAULT,
)

DIRECTION = option(
    "The result to compute: that of a convolution, or the gradient of a depthwise one by its input or by its weight.",
    type=click.Choice(DIRECTIONS),
    default=FORWARD,
)

CHECK_INDICES = option(
    "Do not check the indices of operators such as Gather: one out of range is moved into range, without an error, and "
    "a call takes a little less time.",
    "--no-check-indices",
    flag_value=False,
    default=True,
    show_default=False,
)

SEED = option("The seed of random numbers.", type=click.IntRange(min=0), default=0)

DTYPE = click.Choice(DTYPES)

threads_option = click.Option(
    ["--threads"],
    type=POSITIVE,
    expose_value=False,
    callback=use_threads,
    help="The number of threads on a CPU, for tvmconv and for others.  [default: one for each physical core]",
)

records_option = click.Option(
    ["--tuning-records"],
    type=INPUT_FILE,
    metavar="LOG",
    expose_value=False,
    callback=apply_records,
    help="Use the best configurations in a log of `tvmconv tune`, and where it has none those that tvmconv comes with.",
)


def algorithm(text: str) -> Any:
    """Return the declaration of the option for an algorithm."""
    return option(text, type=Algorithm(), default="auto")


def rounds(default: int) -> Any:
    """Return the declaration of the option for the number of rounds."""
    return option("The number of times that each contender is timed.", default=default)


def output(text: str, suffix: str | None = None, metavar: str = "FILE") -> Any:
    """Return the declaration of the option for the file to write."""
    return option(text, "-o", type=OutputFile(suffix), metavar=metavar)


def plot(text: str) -> Any:
    """Return the declaration of the option for a plot."""
    return option(text, type=OutputFile(".svg"), metavar="FILE.svg")
