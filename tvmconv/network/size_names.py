"""Names of open sizes: identifiers of Python and C, whatever a model calls them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from keyword import iskeyword

TAKEN = ("I", "R", "T", "max", "min")
"""Names that have a meaning where TVM prints sizes, or where these are compared."""


def identifier(name: str) -> str:
    """Return a name of a size as an identifier: "batch_size" for "batch.size", "None_" for "None"."""
    found = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") if not name.isidentifier() else name
    found = re.sub(r"\W+", "_", found, flags=re.ASCII)
    if not found.strip("_") or found[0].isdigit():
        found = f"size_{found}".rstrip("_")
    return f"{found}_" if iskeyword(found) or found in TAKEN else found


def identifiers(names: Iterable[str], taken: Collection[str] = ()) -> dict[str, str]:
    """Return an identifier for each name, another one for each; those that are `taken` are sizes of the same name."""
    found: dict[str, str] = {}
    # What is an identifier keeps its name.
    for name in sorted(dict.fromkeys(names), key=lambda each: identifier(each) != each):
        new = identifier(name)
        while new in found.values() or (new in taken and new != name):
            new += "_"
        found[name] = new
    return found
