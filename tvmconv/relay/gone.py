"""Names of Relay that tvmconv lacks, and what to use instead."""

from __future__ import annotations

EXPORT = "relay.frontend.from_onnx for the model as an ONNX file, to which converters of its framework write it"
MODULE = "tvmconv.import_model(...).mod, which is a module of Relax"
PASSES = "the Relax passes of TVM on tvmconv.import_model(...).mod"
RUN = "tvmconv.build, whose network is called as a function"
WEIGHTS = "nothing: weights are constants of the model, and in the file that Network.export writes"

NAMES = {
    "Function": MODULE,
    "analysis": PASSES,
    "build_config": "tvm.transform.PassContext",
    "create_executor": RUN,
    "dataflow_pattern": PASSES,
    "expr": MODULE,
    "from_caffe": EXPORT,
    "from_caffe2": EXPORT,
    "from_coreml": EXPORT,
    "from_darknet": EXPORT,
    "from_keras": EXPORT,
    "from_mxnet": EXPORT,
    "from_oneflow": EXPORT,
    "from_paddle": EXPORT,
    "from_tensorflow": EXPORT,
    "from_tensorflow2": EXPORT,
    "from_tflite": EXPORT,
    "load_param_dict": WEIGHTS,
    "nn": "relay.op.get to name an operator, and Relax's operators in tvm.relax.op to write one",
    "optimize": PASSES,
    "param_dict": WEIGHTS,
    "quantize": "tvmconv quantize, or a quantized model of ONNX or torch",
    "save_param_dict": WEIGHTS,
    "testing": "a model of ONNX or torch",
    "transform": PASSES,
    "var": MODULE,
    "vm": RUN,
}
"""The thing to use instead of a name, by the name."""
