"""Functions of CUDA in files: their names, and the source of kernels that call them.

A `.cuh` file declares functions in the namespace `tvmconv`, with template parameters for what differs from kernel to
kernel. It includes others by their path inside this package, such as `#include "schedules/cuda/device/mma.cuh"`. Such a
line is also the source that a call by TVM's `cuda_func_call` gets: `expanded` turns it into text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).parents[1]
"""The folder that paths are relative to."""

INCLUDE = re.compile(r'^#include "(.+)"\n', re.MULTILINE)


def function(name: str, *parameters: int | str) -> str:
    """Return the C++ name of a function with its template parameters, which are numbers and names of types.

    Before: `"mma_product", "F16", 2`. After: `tvmconv::mma_product<tvmconv::F16, 2>`.
    """
    listed = ", ".join(f"tvmconv::{each}" if isinstance(each, str) else str(int(each)) for each in parameters)
    return f"tvmconv::{name}<{listed}>" if parameters else f"tvmconv::{name}"


def included(path: str) -> str:
    """Return the line that includes a file: the source for a call of a function in it."""
    return f'#include "{path}"\n'


def expanded(sources: Iterable[str]) -> str:
    """Return the text of all files that sources include, each of them once and after the files that it includes."""
    texts: dict[str, str] = {}

    def read(source: str) -> None:
        for path in INCLUDE.findall(source):
            if path not in texts:
                text = _text(path)
                read(text)
                texts[path] = INCLUDE.sub("", text)

    for source in sources:
        read(source)
    return "".join(texts.values())


@cache
def _text(path: str) -> str:
    return (PACKAGE / path).read_text().removeprefix("#pragma once\n")
