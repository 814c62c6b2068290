"""Getting back what was written to a file."""

from __future__ import annotations

from os import PathLike

import msgspec

from . import storage
from .errors import InvalidArgumentError
from .network import Network
from .operators import Operator
from .sparse.operator import SparseOperator


def load(path: str | PathLike[str]) -> Operator | Network:
    """The operator or network in a file that `Operator.save` or `Network.export` wrote.

    Loading runs the code in the file: load only what you trust. Raises `InvalidArgumentError` for a file that is
    missing, damaged, of another kind or made with another version of TVM, and `NoDeviceError` where the device that it
    was made for is missing.
    """
    module, target, description = storage.read(path)
    try:
        if description.kind == "operator":
            return Operator.from_saved(module, target, description.details)
        if description.kind == "sparse":
            return SparseOperator.from_saved(module, target, description.details)
        return Network.from_saved(module, target, description.details)
    except (msgspec.ValidationError, KeyError) as problem:
        error = f"it lacks the {problem.args[0]}" if isinstance(problem, KeyError) else problem
        expected = f"a file that this version understands; tvmconv {description.tvmconv} made it ({error})"
        raise InvalidArgumentError("path", str(path), expected) from None
