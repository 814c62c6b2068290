"""Convolutions compiled for your model and your machine, by TVM.

Other modules with public names are `tvmconv.autotvm`, which tunes; `tvmconv.nn`, layers of torch with gradients;
`tvmconv.relay`, the names of Relay; and `tvmconv.problem.errors`, all errors.

Public names are loaded on first use, so that `import tvmconv` brings in neither TVM nor any framework.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .problem.epilogue import Epilogue
from .problem.errors import TvmconvError
from .problem.workload import ConvWorkload
from .support.version import __version__
from .targets import sources as sources  # which notes the time before all others are loaded
from .targets import threads
from .targets.threads import get_num_threads, set_num_threads

if TYPE_CHECKING:
    from .network import Network, build, import_model
    from .network.loading import load
    from .runtime.convolving import conv2d, depthwise
    from .runtime.denormals import set_flush_denormal
    from .runtime.operator import Operator, compile  # noqa: A004
    from .runtime.sparse.convolution import SparseConv2d, sparse_conv2d
    from .runtime.sparse.operator import SparseOperator

threads.configure()

_RUNTIME_ALONE = ("Network", "load")
"""The public names that TVM's runtime is enough for; the rest needs its compiler."""

_LAZY = {
    "Network": "network",
    "Operator": "runtime.operator",
    "SparseConv2d": "runtime.sparse.convolution",
    "SparseOperator": "runtime.sparse.operator",
    "build": "network",
    "compile": "runtime.operator",
    "conv2d": "runtime.convolving",
    "depthwise": "runtime.convolving",
    "import_model": "network",
    "load": "network.loading",
    "set_flush_denormal": "runtime.denormals",
    "sparse_conv2d": "runtime.sparse.convolution",
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
