"""ShuffleNet from ONNX to a checked and timed network; `make demo` runs it.

The graph is the one inside the onnx package. Its weights there are constants, which hide mistakes, so it gets random
ones here.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import numpy_helper

import tvmconv
from tvmconv import lowering
from tvmconv.bench.timing import measure
from tvmconv.checking.verify import compare, run_onnxruntime
from tvmconv.cli.console import print_table
from tvmconv.problem.errors import WrongResultError
from tvmconv.targets import device_of, has_gpu, resolve_target

GRAPH = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_shufflenet.onnx"
THREADS = tvmconv.get_num_threads()
"""The number of threads, as many as TVM takes."""


def main() -> None:
    target = resolve_target("cuda" if has_gpu() else "llvm")
    print(f"tvmconv {tvmconv.__version__} on TVM {tvm.__version__}, for {target}\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "shufflenet.onnx")
        onnx.save(with_random_weights(onnx.load(GRAPH)), path)
        show(path, Path(folder, "shufflenet.so"), target)


def show(path: Path, library: Path, target: tvm.target.Target) -> None:
    """Import, build, export, load, check and time the model."""
    start = time.perf_counter()
    model = tvmconv.import_model(path)
    imported = time.perf_counter()
    tvmconv.build(model, target).export(library)
    built = time.perf_counter()
    network = tvmconv.load(library)
    megabytes = library.stat().st_size / 1e6
    print(f"imported in {imported - start:.1f} s, built in {built - imported:.1f} s: {megabytes:.1f} MB\n")

    counts = Counter((layer.convolution.description, layer.kernel, layer.reason) for layer in network.layers)
    print_table(["convolution", "kernel", "why", "count"], [[*layer, count] for layer, count in counts.items()])

    x = np.random.default_rng(0).standard_normal((1, 3, 224, 224)).astype("float32")
    names = [spec.name for spec in network.outputs]
    reference = run_onnxruntime(path, {network.inputs[0].name: x}, names)
    for found in compare(dict(zip(names, [network(x)], strict=True)), reference):
        print(f"ONNX Runtime: {found.output} differs by at most {found.error:.2g}, allowed are {found.bound:.2g}")
        if not found.agrees:
            raise WrongResultError(f"{found.output} is not what ONNX Runtime computes")

    plain = tvm.relax.VirtualMachine(lowering.build(model.mod, target), device_of(target))
    on_device = tvm.runtime.tensor(x, device_of(target))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    contenders = {
        "TVM as it is": lambda: finished(plain["main"](on_device)),
        "tvmconv": lambda: finished(network(on_device)),
        f"ONNX Runtime, CPU, {THREADS} threads": lambda: session.run(None, {network.inputs[0].name: x}),
    }
    timings = measure(contenders, on_gpu=False, rounds=9, seconds=0.2)
    first = next(iter(timings.values())).median
    print_table(
        ["", "ms", "from", "to", "times as fast as TVM"],
        [
            [name, *(round(1e3 * seconds, 2) for seconds in (t.median, t.low, t.high)), round(first / t.median, 2)]
            for name, t in timings.items()
        ],
    )


def finished(output: tvm.runtime.Tensor) -> tvm.runtime.Tensor:
    """Return the output, computed to the end: on a GPU a call returns before its kernels do."""
    output.device.sync()
    return output


def with_random_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with normal weights that keep the size of values from layer to layer."""
    rng = np.random.default_rng(0)
    graph = model.graph
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    inputs = {value.name: value for value in graph.input}
    for node in list(graph.node):
        if node.op_type == "ConstantOfShape":
            name = node.input[0]
            shape = numpy_helper.to_array(tensors[name])
            if len(shape) > 1:  # filters; vectors are the parameters of batch norms, which stay
                values = rng.standard_normal(shape) * np.prod(shape[1:]) ** -0.5
                graph.initializer.append(numpy_helper.from_array(values.astype("float32"), node.output[0]))
                graph.initializer.remove(tensors[name])
                graph.input.remove(inputs[name])
                graph.node.remove(node)
    return model


if __name__ == "__main__":
    main()
