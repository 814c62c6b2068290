"""Exports of torch to ONNX, and what exports, of which tests make hundreds, find out anew each time."""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch.export import decomp_utils, exported_program


def remember_composite_operators(replace: Callable[[Any, str, Any], None]) -> None:
    """Let exports share the composite operators that the first one finds, by a function that replaces an attribute.

    Torch goes through all operators for them, which takes 0.1 s; tests add none that are composite.
    """
    found = cache(decomp_utils._collect_all_valid_cia_ops)
    for module in (decomp_utils, exported_program):
        replace(module, "_collect_all_valid_cia_ops", found)


def onnx_by_torchscript(module: torch.nn.Module, x: torch.Tensor) -> bytes:
    """Return ONNX's bytes of a module of images with open batch, height and width, by the exporter of TorchScript."""
    file, axes = io.BytesIO(), {"x": {0: "n", 2: "h", 3: "w"}}
    torch.onnx.export(module, (x,), file, dynamo=False, input_names=["x"], dynamic_axes=axes)
    return file.getvalue()


def onnx_by_dynamo(module: torch.nn.Module, x: torch.Tensor, sizes: tuple[dict[int, Any]]) -> bytes:
    """Return ONNX's bytes of a module, by the exporter of torch.export; `sizes` are its `dynamic_shapes`."""
    program = torch.onnx.export(module, (x,), None, dynamo=True, dynamic_shapes=sizes, verbose=False)
    return program.model_proto.SerializeToString()  # type: ignore[no-any-return]


def by_onnx(data: bytes) -> Callable[[torch.Tensor], Any]:
    """Return the function that computes a model of one input by ONNX Runtime: a tensor, or a list of several."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # of what it prints of sizes that it refuses
    session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    def run(x: torch.Tensor) -> Any:
        results = [torch.from_numpy(each) for each in session.run(None, {session.get_inputs()[0].name: x.numpy()})]
        return results[0] if len(results) == 1 else results

    return run
