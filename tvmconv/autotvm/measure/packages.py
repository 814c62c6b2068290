"""The packages of the extra "tune", which TVM's worker processes and RPC need."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from tvmconv.problem.errors import MissingPackageError


@contextmanager
def importing() -> Iterator[None]:
    """Turn the failure to import a package in the block into a `MissingPackageError`, which says how to get it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingPackageError(str(error.name), "tune", "tuning") from None


def require_packages() -> None:
    """Raise `MissingPackageError` for a package that TVM misses only when a worker process runs, or never notices."""
    for package in ("cloudpickle", "psutil"):
        if find_spec(package) is None:
            raise MissingPackageError(package, "tune", "tuning")
