"""Import whole models from ONNX and torch through Relax, call kernels of tvmconv in them, compile and run them.

Names are loaded on first use: running a network that was exported needs nothing of TVM's compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .graph.layers import Convolution, Layer, TensorSpec
from .graph.sizes import OpenSize

if TYPE_CHECKING:
    from .building import build
    from .importing import import_model
    from .model import Model
    from .runtime.network import Network

_LAZY = {"Model": "model", "Network": "runtime.network", "build": "building", "import_model": "importing"}

__all__ = ["Convolution", "Layer", "Model", "Network", "OpenSize", "TensorSpec", "build", "import_model"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'tvmconv.network' has no attribute {name!r}")
    if name != "Network":
        import_module("..targets", __name__).require_tvm_compiler()
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
