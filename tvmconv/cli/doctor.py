"""The command `tvmconv doctor`."""

from __future__ import annotations

import click

from .console import print_json, print_table, progress
from .options import JSON, command

STYLES = {"ok": "", "missing": "dim", "wrong": "bold red"}


@command()
def doctor(as_json: bool = JSON) -> None:
    """Check what this machine has for tvmconv, and say how to get the rest.

    The exit code is 1 if something required is missing or wrong; optional parts do not count.
    """
    from tvmconv.checking.doctor import OK, diagnose, is_healthy

    with progress("checking this machine"):
        checks = diagnose()
    if as_json:
        print_json({"ok": is_healthy(checks), "checks": checks})
    else:
        print_table(
            ["", "what", "found", "needed for"],
            [[check.status, check.name, check.found, check.purpose] for check in checks],
            [STYLES[check.status] for check in checks],
        )
        names: dict[str, list[str]] = {}
        for check in checks:
            if check.status != OK and check.remedy:
                names.setdefault(check.remedy, []).append(check.name)
        if names:
            click.echo()
            print_table(["to get", "do"], [[", ".join(wanted), remedy] for remedy, wanted in names.items()])
    click.get_current_context().exit(0 if is_healthy(checks) else 1)
