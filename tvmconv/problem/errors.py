"""The errors that tvmconv raises, each with its exit code on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "CodeSizeError",
    "CompileError",
    "InvalidArgumentError",
    "MissingPackageError",
    "NoDeviceError",
    "NoValidConfigurationError",
    "RegressionError",
    "TensorError",
    "TvmconvError",
    "UnsupportedModelError",
    "WrongResultError",
]


class TvmconvError(Exception):
    """Base of every error that tvmconv raises on purpose."""

    exit_code = 1


class InvalidArgumentError(TvmconvError, ValueError):
    """An argument is wrong: the message names it, the value it had and what would be right."""

    exit_code = 2

    def __init__(self, argument: str, value: object, expected: str) -> None:
        super().__init__(argument, value, expected)
        self.argument = argument
        self.value = value
        self.expected = expected

    def __str__(self) -> str:
        return f"{self.argument} is {self.value!r}; expected {self.expected}"


class TensorError(InvalidArgumentError, RuntimeError, TypeError):
    """An argument of a layer or a function of `tvmconv.nn` is wrong.

    torch raises RuntimeError, TypeError or ValueError for such arguments; this error is all three.
    """


class UnsupportedModelError(TvmconvError):
    """A model, or one of its operators, cannot be imported."""

    exit_code = 3


class NoValidConfigurationError(TvmconvError):
    """No configuration of a schedule is legal for this workload and target."""

    exit_code = 4


class WrongResultError(TvmconvError):
    """A kernel or a network disagrees with its reference."""

    exit_code = 5


class RegressionError(TvmconvError):
    """A kernel is slower than it was by more than allowed."""

    exit_code = 6


class NoDeviceError(TvmconvError):
    """The device that a target runs on is not there."""

    exit_code = 7


class CompileError(TvmconvError):
    """A compiler refused code that tvmconv made, or no compiler was found."""


class CodeSizeError(TvmconvError):
    """A weight has more non-zeros than compilers take as code in reasonable time."""

    exit_code = 3


class MissingPackageError(TvmconvError, ImportError):
    """An optional package is not installed; the message says how to get it."""

    def __init__(self, package: str, extra: str, purpose: str) -> None:
        super().__init__(package, extra, purpose)

    def __str__(self) -> str:
        package, extra, purpose = self.args
        return f"{purpose} needs {package}: pip install 'tvmconv[{extra}]'"


def names_of(module: str, instead: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module: its `AttributeError` says what to use instead of a name in the table."""

    def absent(name: str) -> Any:
        text = f"module {module!r} has no attribute {name!r}"
        raise AttributeError(f"{text}; use {instead[name]}" if name in instead else text)

    return absent
