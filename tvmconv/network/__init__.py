"""Whole models: import from ONNX and torch through Relax, kernels of tvmconv put in, compiled and run."""

from .building import build
from .convolutions import Convolution, Layer
from .importing import import_model
from .model import Model, TensorSpec
from .network import Network

__all__ = ["Convolution", "Layer", "Model", "Network", "TensorSpec", "build", "import_model"]
