"""The command line as tests use it."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from tvmconv.cli import main


def tvmconv(*arguments: object) -> Result:
    """What a command answers; an error that is not an exit is raised."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def tvmconv_json(*arguments: object) -> Any:
    """What a command that succeeds prints with --json."""
    result = tvmconv(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)
