"""The conditions that the sizes of a call have to meet before a branch of an If runs, which a network checks there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import msgspec
import tvm_ffi

from .sizes import REMEMBERED, Condition, Conditions

FITTING_BRANCH = "tvmconv.fitting_branch"
"""The name under which TVM's virtual machine calls `fitting_branch`."""


class BranchChecks(msgspec.Struct, frozen=True):
    """The conditions of both branches of an If."""

    names: tuple[str, ...]
    """The names of the sizes in the conditions."""
    of_then: tuple[Condition, ...]
    of_else: tuple[Condition, ...]


@tvm_ffi.error.register_error("tvmconv.UnfitBranch")
class UnfitBranch(Exception):  # noqa: N818
    """Raised where sizes break a condition of the branch that is about to run; its text says which sizes would fit.

    It comes through TVM's virtual machine, which keeps the text alone; `Network` makes an error of an argument of it.
    """


def fitting_branch(test: Any, sizes: Sequence[int], checks: str) -> Any:
    """Return the test of an If; raise `UnfitBranch` if the sizes do not fit the branch that the test chooses.

    `test` is a tensor of one truth value on any device, `checks` is a `BranchChecks` as JSON, and `sizes` are the
    values of the sizes in it. The test is read only where the sizes do not fit both branches.
    """
    broken = _broken(tuple(sizes), str(checks))
    if any(broken) and (condition := broken[0 if test.numpy() else 1]) is not None:
        raise UnfitBranch(condition.expected)
    return test


@lru_cache(maxsize=REMEMBERED)
def _broken(sizes: tuple[int, ...], checks: str) -> tuple[Condition | None, Condition | None]:
    """Return the first condition of each branch that is not true of sizes; None if all are."""
    known = msgspec.json.decode(checks, type=BranchChecks)
    values = dict(zip(known.names, sizes, strict=True))
    of_then, of_else = (Conditions(each).first_broken(values) for each in (known.of_then, known.of_else))
    return of_then, of_else


tvm_ffi.register_global_func(FITTING_BRANCH, fitting_branch)
