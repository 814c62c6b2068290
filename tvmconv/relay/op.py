"""Relay's operators, for scripts that name those to be tuned."""

from __future__ import annotations

from typing import NamedTuple

from tvmconv.problem.errors import names_of

from .gone import NAMES

__getattr__ = names_of(__name__, NAMES)


class Op(NamedTuple):
    """An operator, which is no more than its name."""

    name: str


def get(op_name: str) -> Op:
    """Return the operator of a name, such as "nn.conv2d", for `autotvm.task.extract_from_program`.

    >>> from tvmconv import relay
    >>> relay.op.get("nn.conv2d").name
    'nn.conv2d'
    """
    return Op(op_name)
