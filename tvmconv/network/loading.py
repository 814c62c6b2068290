"""Loading of operators and networks from files."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

import msgspec

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime import storage
from tvmconv.targets import require_tvm_compiler

from . import Network

if TYPE_CHECKING:
    from tvmconv.runtime.operator import Operator


def load(path: str | PathLike[str]) -> Operator | Network:
    """Return the operator or network in a file that `Operator.save` or `Network.export` wrote.

    A network runs in a process with TVM's runtime alone (`TVM_USE_RUNTIME_LIB=1`), an operator needs its compiler.
    Loading runs the code in the file: load only what you trust. Raises `InvalidArgumentError` for a file that is
    missing, damaged, of another kind or made with another version of TVM, and `NoDeviceError` where the device that it
    was made for is missing.

    >>> import numpy as np, tvmconv
    >>> workload = tvmconv.ConvWorkload.depthwise((1, 32, 56, 56), (32, 1, 3, 3))
    >>> tvmconv.compile(workload, "llvm").save("depthwise.so")
    >>> x, w = np.ones((1, 32, 56, 56), "float32"), np.ones((32, 1, 3, 3), "float32")
    >>> tvmconv.load("depthwise.so")(x, w).shape
    (1, 32, 56, 56)
    """
    module, description = storage.read(path)
    content = storage.Content(path)
    try:
        if description.kind == "network":
            return Network.from_saved(module, description, content)
        require_tvm_compiler()
        from tvmconv.runtime.operator import Operator
        from tvmconv.runtime.sparse.operator import SparseOperator

        kinds = {kind.KIND: kind for kind in (Operator, SparseOperator)}
        return kinds[description.kind].from_saved(module, description, content)
    except (msgspec.ValidationError, KeyError) as problem:
        error = f"it lacks the {problem.args[0]}" if isinstance(problem, KeyError) else problem
        expected = f"a file that this version understands; tvmconv {description.tvmconv} made it ({error})"
        raise InvalidArgumentError("path", str(path), expected) from None
