"""Write the reference of the public names, from their docstrings, to a folder: python docs/reference.py build/docs."""

from __future__ import annotations

import sys
import warnings
from importlib import import_module
from pathlib import Path

MODULES = (
    "tvmconv",
    "tvmconv.autotvm",
    "tvmconv.nn",
    "tvmconv.relay",
    "tvmconv.problem.errors",
)
"""The modules with public names, which `__all__` lists."""


def main() -> None:
    """Write the pages; a warning, such as a name that nothing resolves, is an error."""
    import pdoc

    for module in map(import_module, MODULES):
        for name in module.__all__:
            setattr(module, name, getattr(module, name))  # pdoc sees only what has been loaded
    warnings.simplefilter("error")
    # pdoc knows no module for constructors of named tuples and inherited ones of dataclasses: types stay as written.
    warnings.filterwarnings("ignore", r"Error parsing type annotation .*\.__init__\.")
    pdoc.render.configure(show_source=False, footer_text=f"tvmconv {import_module('tvmconv').__version__}")
    pdoc.pdoc(*MODULES, output_directory=Path(sys.argv[1]))


if __name__ == "__main__":
    main()
