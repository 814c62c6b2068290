"""LLVM's options, which a process has once: a thread that changes them makes its code while no other makes any.

A target's "cl-opt" holds them. TVM sets them while it makes IR or machine code of a module, in whatever thread, and
resets them behind that; machine code that another thread made in between would be made with them as well. TVM makes it
late: at the first look-up of a function, at the export of a library, and for a view as assembly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tvm
    from tvm.runtime import Module

_changes = Condition()
_users = 0
"""The number of threads that use LLVM with its default options; -1 while one uses it with other options."""


@contextmanager
def options_of(module: Module) -> Iterator[None]:
    """Let TVM make machine code of a module, in the block, with the options that it was built with and no others.

    Inside a block, no other one is entered.
    """
    with _options(alone=_has_options(module)):
        yield


@contextmanager
def options_for(target: tvm.target.Target) -> Iterator[None]:
    """Let TVM generate a module for a target, in the block, with its options and no others, as in `options_of`."""
    with _options(alone="cl-opt" in json.loads(str(target))):
        yield


def function_of(module: Any, name: str) -> Any:
    """Return a function of a module or an executable, whose machine code is made if need be."""
    with options_of(getattr(module, "mod", module)):
        return module[name]


def _has_options(module: Module) -> bool:
    """Return whether a module, or one that it imports, was built with options of LLVM."""
    if module.kind == "llvm" and "cl-opt" in json.loads(str(module["_get_target_string"]())):
        return True
    return any(map(_has_options, module.imports))


@contextmanager
def _options(alone: bool) -> Iterator[None]:
    """Run the block in parallel with others; or alone, after those that have begun, while others wait."""
    global _users
    with _changes:
        _changes.wait_for(lambda: _users == 0 if alone else _users >= 0)
        _users += -1 if alone else 1
    try:
        yield
    finally:
        with _changes:
            _users += 1 if alone else -1
            _changes.notify_all()
