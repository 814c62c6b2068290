"""Small quantized ONNX graphs for the tests of networks, and what ONNX Runtime computes of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from tvm import relax

import tvmconv
from tests.shared.network_graph import Graph
from tests.shared.passes import use_kernels
from tvmconv.network import Network
from tvmconv.network.between.cpu.spreading import lower_and_fuse
from tvmconv.network.passes.quantized.lowering import lower_quantization
from tvmconv.network.passes.quantized.tables import use_tables
from tvmconv.targets import resolve_target

X = (1, 8, 9, 11)


class Quantized(Graph):
    """A graph with quantized tensors: "x" is of float32, and `x` is what is left of it, in integers."""

    def quantize(self, y: str, scale: Any = 0.05, zero_point: Any = 3, dtype: str = "uint8", **attributes: Any) -> str:
        """Quantize a tensor."""
        operands = self.constant(scale), self.constant(zero_point, dtype)
        return self.node("QuantizeLinear", y, *operands, **attributes)

    def dequantize(
        self, y: str, scale: Any = 0.05, zero_point: Any = 3, dtype: str = "uint8", **attributes: Any
    ) -> str:
        """Dequantize a tensor."""
        operands = self.constant(scale), self.constant(zero_point, dtype)
        return self.node("DequantizeLinear", y, *operands, **attributes)

    def rounded(self, y: str, scale: Any = 0.05, zero_point: Any = 3, dtype: str = "uint8") -> str:
        """Quantize a tensor and dequantize it again."""
        return self.dequantize(self.quantize(y, scale, zero_point, dtype), scale, zero_point, dtype)

    def quantize_dynamically(self, y: str) -> tuple[str, str]:
        """Quantize a tensor by its own range; return its integers, and their zero point."""
        integers = self.node("DynamicQuantizeLinear", y)
        scale, zero_point = f"{integers}_scale", f"{integers}_zero_point"
        self.nodes[-1].output.extend([scale, zero_point])
        return integers, zero_point

    def weight(self, *shape: int, scale: Any = 0.01, zero_point: Any = 0, dtype: str = "int8", axis: int = 0) -> str:
        """Add the dequantization of random integers."""
        return self.dequantize(self.integers(*shape, dtype=dtype), scale, zero_point, dtype, axis=axis)

    def integers(self, *shape: int, dtype: str = "int8") -> str:
        """Add random integers of a type."""
        limits = np.iinfo(dtype)
        return self.constant(self._rng.integers(limits.min, limits.max + 1, shape), dtype)

    def bias(self, count: int, scale: Any) -> str:
        """Add the dequantization of a bias in int32."""
        values = self.constant(self._rng.integers(-500, 500, count), "int32")
        return self.node("DequantizeLinear", values, self.constant(scale), axis=0)


def onnxruntimes(model: onnx.ModelProto | Path, x: np.ndarray) -> np.ndarray:
    """Return what ONNX Runtime computes node by node, as the operators are defined."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"x": x})[0])


def floats_between(model: onnx.ModelProto | Path) -> list[str]:
    """Return the functions of a network that read or write planes of float32, but for its input and its output."""
    source, target = tvmconv.import_model(model), resolve_target("llvm")
    mod = lower_and_fuse(lower_quantization(use_tables(use_kernels(source.mod, target)[0], target)), target)
    main = mod["main"]
    ends = {str(each.name) for each in main.params}
    found = []
    for block in main.body.blocks:
        last = block.bindings[-1].var
        for binding in block.bindings:
            call = binding.value
            if not isinstance(call, relax.Call) or call.op.name != "relax.call_tir" or binding.var.same_as(last):
                continue
            inputs = [
                each for each in call.args[1].fields if isinstance(each, relax.Var) and str(each.name) not in ends
            ]
            if any("float32" in str(each.ty) and has_planes(each) for each in (*inputs, binding.var)):
                found.append(str(call.args[0].name_hint))
    return found


def has_planes(x: relax.Var) -> bool:
    """Return whether a tensor (N, C, H, W), or in blocks, has more than a pixel."""
    return any(int(size) > 1 for size in list(x.ty.shape)[2:4])


def in_integers(network: Network) -> list[bool]:
    """Return for each convolution or linear layer whether it is computed in integers."""
    workloads = [layer.convolution.workload for layer in network.layers]
    return [each is not None and each.dtype in ("int8", "uint8") for each in workloads]
