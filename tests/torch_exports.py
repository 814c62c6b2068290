"""What exports of torch, of which tests make hundreds, find out anew each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from torch.export import decomp_utils, exported_program


def remember_composite_operators(replace: Callable[[Any, str, Any], None]) -> None:
    """Let exports share the composite operators that the first one finds, by a function that replaces an attribute.

    Torch goes through all operators for them, which takes 0.1 s; tests add none that are composite.
    """
    found = cache(decomp_utils._collect_all_valid_cia_ops)
    for module in (decomp_utils, exported_program):
        replace(module, "_collect_all_valid_cia_ops", found)
