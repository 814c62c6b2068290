"""The command line called from tests, within their process."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from tvmconv.cli import main


def tvmconv(*arguments: object) -> Result:
    """Run a command and return its result; raise an error that is not an exit."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def tvmconv_json(*arguments: object) -> Any:
    """Run a command with --json, which has to succeed, and return its output."""
    result = tvmconv(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
