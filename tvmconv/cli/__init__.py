"""The command line, `tvmconv COMMAND`: one file for each command, and the output for errors.

Commands import modules when they run, so that help and completion load neither TVM nor any framework.
"""

from __future__ import annotations

import errno
import re
import warnings
from typing import Any

import click

from tvmconv.problem.errors import TvmconvError
from tvmconv.support.version import __version__

from .bench import bench
from .calibrate import calibrate
from .doctor import doctor
from .interrupts import INTERRUPTED, interrupts, raise_interrupt
from .log import log
from .models.build import build
from .models.inspect import inspect
from .models.quantize import quantize
from .models.run import run
from .models.tasks import tasks
from .report import report
from .rpc import rpc
from .tune import tune
from .verify import verify

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""The error numbers of writes to a full disk."""

EXHAUSTED = re.compile("bad_alloc|out of memory")
"""A pattern in the messages of TVM, CUDA or torch when memory is exhausted."""


class Commands(click.Group):
    """A group whose commands end with one line and the error's exit code, not with a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        with warnings.catch_warnings(), interrupts(raise_interrupt) as seen:
            warnings.showwarning = lambda message, *where: click.echo(f"warning: {_one_line(message)}", err=True)
            try:
                return self._with_compiler(ctx)
            except TvmconvError as error:
                click.echo(f"error: {_one_line(error)}", err=True)
                ctx.exit(error.exit_code)
            except (KeyboardInterrupt, MemoryError, RuntimeError) as error:
                # TVM makes a RuntimeError of a KeyboardInterrupt in one of its passes.
                if seen or isinstance(error, KeyboardInterrupt):
                    click.echo("interrupted", err=True)
                    ctx.exit(INTERRUPTED)
                if not (isinstance(error, MemoryError) or EXHAUSTED.search(str(error))):
                    raise
                click.echo(f"error: not enough memory ({_one_line(error)}); smaller inputs take less", err=True)
                ctx.exit(1)
            except OSError as error:
                if error.errno == errno.EPIPE:  # click ends quietly when nobody reads on
                    raise
                hint = "; free some space, then run the command again" if error.errno in FULL else ""
                click.echo(f"error: {_one_line(error)}{hint}", err=True)
                ctx.exit(1)

    def _with_compiler(self, ctx: click.Context) -> Any:
        """Run the command; if it misses names of TVM because its runtime alone is loaded, say so."""
        try:
            return super().invoke(ctx)
        except (AttributeError, ImportError):
            from tvmconv.targets import require_tvm_compiler

            require_tvm_compiler()
            raise


@click.group(
    cls=Commands,
    commands=[doctor, tasks, quantize, build, run, inspect, tune, calibrate, log, rpc, bench, verify, report],
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="Exit codes: 0 done; 1 failure; 2 usage or bad input; 3 unsupported model or operator; 4 no valid "
    "configuration; 5 wrong results; 6 regression; 7 no device; 130 interrupted.",
)
@click.version_option(__version__, prog_name="tvmconv", message="%(prog)s %(version)s")
def main() -> None:
    """Compile convolutions, and networks from ONNX and PyTorch, with TVM; run, inspect and tune them.

    Data goes to stdout, progress and notes to stderr. Every command takes --json.
    """


def _one_line(message: object) -> str:
    return " ".join(str(message).split())
