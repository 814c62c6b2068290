"""Contenders on whole networks: tvmconv, and others that run the same module of torch."""

from __future__ import annotations

import io
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import tvm

from tvmconv import lowering
from tvmconv.network import Network, build, import_model
from tvmconv.network.loading import load
from tvmconv.problem.dtypes import one_of
from tvmconv.problem.precision import DEFAULT, HALVES
from tvmconv.runtime.storage import export
from tvmconv.targets import backend_of, device_of

from ..peers.onnxruntime import bound
from ..peers.peer import not_installed
from ..peers.pytorch import compiled, compiler_obstacle, strict_and_fastest, with_tf32
from ..timing import Call


class Prepared(NamedTuple):
    """A network that a contender has prepared to run."""

    call: Call
    """Runs the network once on the images it was prepared with; returns a tensor that torch takes, on their device."""
    save: Callable[[Path], object]
    """Writes the network to a file, as one deploys it; call it first, since TVM warns of every constant after a run."""
    images: Any
    """The tensor that a call takes its images from."""
    network: Network | None = None
    """The network that is called, where tvmconv has built it."""
    multiplied: frozenset[str] = frozenset()
    """The types of the factors of convolutions and products, besides float32, with which larger errors are allowed."""


class Contender(ABC):
    """A way to run networks: a library, in one of its modes."""

    name: str

    @property
    def is_built_ahead(self) -> bool:
        """True where another process can do the slow part, with the same result while others use the GPU."""
        return False

    def obstacle(self, target: tvm.target.Target) -> str | None:
        """Return the reason why it cannot take part; None where it can."""
        return None

    @abstractmethod
    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        """Prepare a module of torch on the CPU for images (N, 3, H, W), which are where the target's kernels run."""


@dataclass(frozen=True)
class Tvmconv(Contender):
    """tvmconv as a user gets it."""

    name: str = "tvmconv"
    sparse: str = "auto"
    precision: str = DEFAULT
    library: Path | None = None
    """The file with the network, where it has been built."""

    @property
    def is_built_ahead(self) -> bool:
        return True

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        if self.library is None:
            network = build(import_model(module, (x.cpu(),)), target, self.sparse, self.precision)
            save: Callable[[Path], object] = network.export
        else:
            network = cast(Network, load(self.library))
            save = partial(shutil.copy, self.library)
        return Prepared(partial(network, x), save, x, network, frozenset(network.multiplied))


@dataclass(frozen=True)
class PyTorch(Contender):
    """PyTorch, with cuDNN's search for the fastest algorithms: in strict float32 where nothing else is said."""

    name: str = "pytorch"
    tf32: bool = False
    """TF32 in convolutions and products, as users switch it on for a GPU."""
    compiles: bool = False
    """`torch.compile` makes the kernels; CUDA graphs of some of its modes are captured around all contenders alike."""
    mode: str | None = None
    """The mode of `torch.compile`; None for its default one, others may choose algorithms by their times."""
    half: bool = False
    """Weights and images in half precision and channels_last."""
    autocast: bool = False
    """Weights and images stay in float32 with `half`, and are cast in each call."""
    dtype: str = DEFAULT
    """The precision of the run, such as "float16"."""

    @property
    def is_built_ahead(self) -> bool:
        return self.compiles and self.mode is None

    def obstacle(self, target: tvm.target.Target) -> str | None:
        if self.half and self.dtype not in HALVES:
            return f"with a precision of {one_of(list(HALVES))}"
        if self.tf32 and not backend_of(target).on_gpu:
            return "on a GPU"
        return compiler_obstacle(target) if self.compiles else None

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        import torch

        strict_and_fastest()
        torch.backends.cuda.matmul.allow_tf32 = False
        dtype = getattr(torch, self.dtype) if self.half else torch.float32
        form = {"dtype": torch.float32 if self.autocast else dtype}
        form |= {"memory_format": torch.channels_last} if self.half else {}
        placed, images = deepcopy(module).to(x.device, **form), x.to(**form)
        forward = compiled(placed, self.mode) if self.compiles else placed
        if self.tf32:
            forward = with_tf32(forward)

        def call() -> Any:
            with torch.inference_mode(), torch.autocast(x.device.type, dtype) if self.autocast else nullcontext():
                return forward(images).float()

        multiplied = frozenset([self.dtype] if self.half else ["tf32"] if self.tf32 else [])
        return Prepared(call, partial(torch.save, placed.state_dict()), images, multiplied=multiplied)


class OnnxRuntime(Contender):
    """ONNX Runtime on a CPU, with PyTorch's number of threads."""

    name = "onnxruntime"

    def obstacle(self, target: tvm.target.Target) -> str | None:
        return "on a CPU" if backend_of(target).on_gpu else not_installed("onnx", "onnxruntime")

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        model = exported(module, x)
        return Prepared(bound(model, x), lambda path: path.write_bytes(model), x)


@dataclass(frozen=True)
class OpenVino(Contender):
    """OpenVINO on a CPU, asked for one stream with PyTorch's number of threads."""

    name: str = "openvino"
    dtype: str = DEFAULT
    """The precision of the run: in half precision OpenVINO may compute in it, otherwise in float32."""

    def obstacle(self, target: tvm.target.Target) -> str | None:
        return "on a CPU" if backend_of(target).on_gpu else not_installed("onnx", "openvino")

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        import openvino
        import torch

        core, hints = openvino.Core(), openvino.properties.hint
        model = exported(module, x)
        options = {
            openvino.properties.num_streams: 1,
            openvino.properties.inference_num_threads: torch.get_num_threads(),
            hints.performance_mode: hints.PerformanceMode.LATENCY,
            hints.inference_precision: getattr(openvino.Type, HINTS.get(self.dtype, "f32")),
        }
        request = core.compile_model(core.read_model(model), "CPU", options).create_infer_request()
        output = torch.empty(tuple(request.get_output_tensor().shape))
        request.set_input_tensor(openvino.Tensor(x.numpy(), shared_memory=True))
        request.set_output_tensor(openvino.Tensor(output.numpy(), shared_memory=True))

        def call() -> Any:
            request.infer()
            return output

        multiplied = frozenset([self.dtype] if self.dtype in HINTS else [])
        return Prepared(call, lambda path: path.write_bytes(model), x, multiplied=multiplied)


HINTS = {"float16": "f16", "bfloat16": "bf16"}
"""OpenVINO's names of half precisions."""


def exported(module: Any, x: Any, open_axes: Mapping[int, str] | None = None) -> bytes:
    """Return the ONNX model of a module with input x, of which axes may be open, by their names, and output y."""
    import torch

    buffer, names = io.BytesIO(), {"input_names": ["x"], "output_names": ["y"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this exporter, which needs no further package, is to be replaced
        torch.onnx.export(module, (x,), buffer, **names, dynamic_axes={"x": dict(open_axes or {})}, dynamo=False)
    return buffer.getvalue()


class Tvm(Contender):
    """TVM without kernels of tvmconv: the imported module, and its default pipeline with fusion for the target."""

    name = "tvm"

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        from tvm.runtime.vm import VirtualMachine

        executable = lowering.build(import_model(module, (x.cpu(),)).mod, target)
        machine = cache(lambda: VirtualMachine(executable, device_of(target))["main"])
        return Prepared(lambda: machine()(x), lambda path: export(executable, path, str(target)), x)


OURS, DENSE, FLOAT32 = Tvmconv(), Tvmconv("tvmconv-dense", "never"), Tvmconv("tvmconv-float32")

PEERS: dict[str, Contender] = {
    peer.name: peer
    for peer in (
        FLOAT32,
        PyTorch(),
        PyTorch("pytorch-tf32", tf32=True),
        PyTorch("torch-compile", compiles=True),
        PyTorch("pytorch-half", half=True),
        PyTorch("pytorch-autocast", half=True, autocast=True),
        PyTorch("torch-compile-half", compiles=True, half=True),
        PyTorch("torch-compile-max-autotune", compiles=True, mode="max-autotune-no-cudagraphs", half=True),
        OnnxRuntime(),
        OpenVino(),
        Tvm(),
    )
}
"""Every peer by its name, in the order of the rows."""
