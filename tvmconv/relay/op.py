"""Relay's operators, as far as scripts name those that are to be tuned."""

from __future__ import annotations

from typing import NamedTuple


class Op(NamedTuple):
    """An operator, which is no more than its name."""

    name: str


def get(op_name: str) -> Op:
    """The operator of a name, such as "nn.conv2d", for `autotvm.task.extract_from_program`."""
    return Op(op_name)
