"""Convolutions for TVM, with schedules for CUDA and CPU.

Public names are loaded on first use, so that `import tvmconv` brings in neither TVM nor any framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from . import sources as sources  # which notes the time before all others are loaded
from . import threads
from .epilogue import Epilogue
from .errors import TvmconvError
from .threads import get_num_threads, set_num_threads
from .version import __version__
from .workload import ConvWorkload

if TYPE_CHECKING:
    from .convolving import conv2d, depthwise
    from .denormals import set_flush_denormal
    from .loading import load
    from .network import Network, build, import_model
    from .operator import Operator, compile  # noqa: A004
    from .sparse.convolution import SparseConv2d, sparse_conv2d
    from .sparse.operator import SparseOperator

threads.configure()

_RUNTIME_ALONE = ("Network", "load")
"""The public names that TVM's runtime is enough for; the rest needs its compiler."""

_LAZY = {
    "Network": "network",
    "Operator": "operator",
    "SparseConv2d": "sparse.convolution",
    "SparseOperator": "sparse.operator",
    "build": "network",
    "compile": "operator",
    "conv2d": "convolving",
    "depthwise": "convolving",
    "import_model": "network",
    "load": "loading",
    "set_flush_denormal": "denormals",
    "sparse_conv2d": "sparse.convolution",
}

__all__ = [
    "ConvWorkload",
    "Epilogue",
    "Network",
    "Operator",
    "SparseConv2d",
    "SparseOperator",
    "TvmconvError",
    "__version__",
    "build",
    "compile",
    "conv2d",
    "depthwise",
    "get_num_threads",
    "import_model",
    "load",
    "set_flush_denormal",
    "set_num_threads",
    "sparse_conv2d",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvmconv' has no attribute {name!r}")
    if name not in _RUNTIME_ALONE:
        import_module(".targets", __name__).require_tvm_compiler()
    value = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    globals()[name] = value  # or each use would come through here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
