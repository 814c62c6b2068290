"""The command line as a whole: help, errors, exit codes, output streams, and imports."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tvmconv import __version__
from tvmconv.cli import Commands, main
from tvmconv.cli.console import print_json, print_table
from tvmconv.cli.options import OutputFile
from tvmconv.problem import errors

HEAVY = {"tvm", "tvm_ffi", "numpy", "torch", "onnx", "onnxruntime", "xgboost", "matplotlib", "rich"}


def commands(group: click.Group, *path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield the commands of a group and of the groups in it, each with its whole name."""
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, *path, name)
        else:
            yield " ".join((*path, name)), command


COMMANDS = dict(commands(main))
HELP = [["--help"], ["--version"], *([*name.split(), "--help"] for name in COMMANDS)]


def run_python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("arguments", HELP, ids=" ".join)
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    done = run_python(
        "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "from tvmconv.cli import main; main()",
        *arguments,
    )
    assert done.stdout
    loaded = set(done.stderr.split())
    assert "tvmconv.cli" in loaded
    assert not HEAVY & loaded


def test_help_is_quick() -> None:
    def seconds() -> float:
        """Return the processor's seconds: other work on the machine makes a run wait."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_python("from tvmconv.cli import main; main()", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    assert any(seconds() < 0.3 for _ in range(8))


def test_version() -> None:
    assert CliRunner().invoke(main, ["--version"]).stdout == f"tvmconv {__version__}\n"


def test_module_is_the_command_line() -> None:
    command = [sys.executable, "-m", "tvmconv", "--version"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == f"tvmconv {__version__}\n"


def test_completion_of_a_shell() -> None:
    environment = {"_TVMCONV_COMPLETE": "zsh_complete", "COMP_WORDS": "tvmconv bui", "COMP_CWORD": "1"}
    found = CliRunner().invoke(main, prog_name="tvmconv", env=environment).stdout
    assert found.splitlines()[:2] == ["plain", "build"]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_takes_json(name: str) -> None:
    assert any("--json" in option.opts for option in COMMANDS[name].params)


FAILURES = [
    (errors.TvmconvError("it broke"), 1),
    (errors.InvalidArgumentError("stride", 0, "an integer of 1 or more"), 2),
    (errors.UnsupportedModelError("no such operator"), 3),
    (errors.NoValidConfigurationError("none is legal"), 4),
    (errors.WrongResultError("they differ"), 5),
    (errors.RegressionError("slower"), 6),
    (errors.NoDeviceError("no GPU"), 7),
    (errors.CompileError("NVRTC, for sm_90:\nline one\n\n  line two"), 1),
    (errors.MissingPackageError("onnx", "onnx", "importing a model"), 1),
]


@pytest.mark.parametrize(("error", "code"), FAILURES, ids=[type(error).__name__ for error, _ in FAILURES])
def test_an_error_is_one_line(error: errors.TvmconvError, code: int) -> None:
    result = CliRunner().invoke(commands_that(error), ["command"])
    assert result.exit_code == code == error.exit_code
    assert result.stdout == ""
    assert result.stderr == f"error: {' '.join(str(error).split())}\n"


def test_interrupt() -> None:
    result = CliRunner().invoke(commands_that(KeyboardInterrupt()), ["command"])
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "interrupted\n")


def test_interrupt_that_became_another_error() -> None:
    """TVM answers a KeyboardInterrupt in one of its passes with a RuntimeError."""

    @click.command()
    def command() -> None:
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        raise RuntimeError

    before = signal.getsignal(signal.SIGINT)  # a shell's background jobs ignore it
    result = CliRunner().invoke(Commands(commands=[command]), ["command"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")
    assert signal.getsignal(signal.SIGINT) is before


def test_full_disk_is_one_line() -> None:
    result = CliRunner().invoke(commands_that(OSError(28, "No space left on device")), ["command"])
    told = "error: [Errno 28] No space left on device; free some space, then run the command again\n"
    assert (result.exit_code, result.stderr) == (1, told)


def test_nobody_reads_on() -> None:
    result = CliRunner().invoke(commands_that(BrokenPipeError(32, "Broken pipe")), ["command"])
    assert (result.exit_code, result.stderr) == (1, "")


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate\n9 TiB"), RuntimeError("std::bad_alloc"), RuntimeError("out of memory")]
)
def test_no_memory_is_one_line(error: Exception) -> None:
    result = CliRunner().invoke(commands_that(error), ["command"])
    told = f"error: not enough memory ({' '.join(str(error).split())}); smaller inputs take less\n"
    assert (result.exit_code, result.stderr) == (1, told)


@pytest.mark.parametrize("error", [ZeroDivisionError("a bug"), RuntimeError("a bug")])
def test_a_bug_is_not_hidden(error: Exception) -> None:
    result = CliRunner().invoke(commands_that(error), ["command"])
    assert result.exception is error


def test_a_warning_is_one_line_on_stderr() -> None:
    @click.command()
    def command() -> None:
        warnings.warn("write it\nthat way", stacklevel=2)
        click.echo("done")

    result = CliRunner().invoke(Commands(commands=[command]), ["command"])
    assert (result.stdout, result.stderr) == ("done\n", "warning: write it that way\n")


def test_output_file_needs_its_folder(tmp_path: Path) -> None:
    @click.command()
    @click.argument("path", type=OutputFile(".so"))
    def command(path: Path) -> None:
        click.echo(path.name)

    missing = CliRunner().invoke(command, [str(tmp_path / "absent" / "file.so")])
    assert missing.exit_code == 2
    assert "there is no folder" in missing.stderr
    assert CliRunner().invoke(command, [str(tmp_path / "file.so")]).stdout == "file.so\n"


def test_a_table_in_a_pipe_is_plain_and_unfolded(capsys: pytest.CaptureFixture[str]) -> None:
    long = "a long reason " * 30 + "[bold]as it is[/bold]"
    print_table(["layer", "FLOPs", "share", "why"], [["a", 1234567, 0.25, long], ["bcd", 8, 12.0, ""]], ["red", "bold"])
    header, first, second = capsys.readouterr().out.splitlines()
    assert header.split() == ["layer", "FLOPs", "share", "why"]
    assert first.rstrip().endswith(long)
    assert first.startswith("a      1,234,567   0.25  a long")
    assert second.startswith("bcd            8     12")


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"mean": float("nan"), "shape": (1, 2)})
    assert json.loads(capsys.readouterr().out) == {"mean": None, "shape": [1, 2]}


def commands_that(error: BaseException) -> Commands:
    """Return a command line with one command, which raises the error."""

    @click.command()
    def command() -> None:
        raise error

    return Commands(commands=[command])
