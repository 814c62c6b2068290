"""Print the lowest versions that pyproject.toml allows, as constraints for pip: `python tests/lowest_versions.py tune`.

They are those of tvmconv's dependencies and of the extras that are named. Versions that are pinned stay out.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]

LISTS = re.compile(r"^(\w+) = (\[.*?\])$", re.MULTILINE | re.DOTALL)
"""A pattern of the lists in pyproject.toml, of a line or of several, with their names."""

BOUND = re.compile(r'"([\w-]+)>=([\w.]+)[^"]*"')
"""A pattern of a requirement with a lower bound, with the package and the bound."""


def lowest(extras: Sequence[str]) -> list[str]:
    """Return a constraint such as "numpy==2.2.5" for each package with a lower bound."""
    lists = dict(LISTS.findall((ROOT / "pyproject.toml").read_text()))
    return [f"{name}=={bound}" for key in ("dependencies", *extras) for name, bound in BOUND.findall(lists[key])]


if __name__ == "__main__":
    print("\n".join(lowest(sys.argv[1:])))
