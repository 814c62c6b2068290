"""Contenders on whole networks: tvmconv, and others that run the same module of torch."""

from __future__ import annotations

import io
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable
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
from ..peers.pytorch import (
    compiled,
    compiler_obstacle,
    strict_and_fastest,
    with_tf32_convolutions,
    with_tf32_products,
)
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
    """Eager PyTorch in strict float32, with cuDNN's search for the fastest algorithms."""

    name: str = "pytorch"

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        import torch

        strict_and_fastest()
        torch.backends.cuda.matmul.allow_tf32 = False
        placed = deepcopy(module).to(x.device)
        return Prepared(_without_gradients(self._forward(placed), x), partial(torch.save, placed.state_dict()), x)

    def _forward(self, module: Any) -> Callable[[Any], Any]:
        return partial(module)


def _without_gradients(forward: Callable[[Any], Any], x: Any) -> Call:
    import torch

    def call() -> Any:
        with torch.inference_mode():
            return forward(x)

    return call


@dataclass(frozen=True)
class Tf32(PyTorch):
    """Eager PyTorch with TF32 in convolutions and products, as users switch it on for a GPU."""

    name: str = "pytorch-tf32"

    def obstacle(self, target: tvm.target.Target) -> str | None:
        return None if backend_of(target).on_gpu else "on a GPU"

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        return super().prepare(module, x, target)._replace(multiplied=frozenset(["tf32"]))

    def _forward(self, module: Any) -> Callable[[Any], Any]:
        return with_tf32_convolutions(with_tf32_products(module))


@dataclass(frozen=True)
class Compiled(PyTorch):
    """`torch.compile`; the CUDA graphs of some of its modes are captured around all contenders alike."""

    name: str = "torch-compile"
    mode: str | None = None
    """The mode of `torch.compile`; None for its default one, others may choose algorithms by their times."""

    @property
    def is_built_ahead(self) -> bool:
        return self.mode is None

    def obstacle(self, target: tvm.target.Target) -> str | None:
        return compiler_obstacle(target)

    def _forward(self, module: Any) -> Callable[[Any], Any]:
        return compiled(module, self.mode)


@dataclass(frozen=True)
class Half(Compiled):
    """PyTorch in half precision and channels_last, eager or by `torch.compile`; its images are in these, too.

    With `autocast` weights and images stay in float32, and are cast in each call.
    """

    name: str = "pytorch-half"
    compiles: bool = False
    autocast: bool = False
    dtype: str = DEFAULT
    """The precision of the run, such as "float16"."""

    @property
    def is_built_ahead(self) -> bool:
        return self.compiles and super().is_built_ahead

    def obstacle(self, target: tvm.target.Target) -> str | None:
        if self.dtype not in HALVES:
            return f"with a precision of {one_of(list(HALVES))}"
        return super().obstacle(target) if self.compiles else None

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        import torch

        torch.backends.cudnn.benchmark = True
        dtype = getattr(torch, self.dtype)
        form = {"dtype": torch.float32 if self.autocast else dtype, "memory_format": torch.channels_last}
        placed, images = deepcopy(module).to(x.device, **form), x.to(**form)
        forward = self._forward(placed) if self.compiles else placed

        def in_half(given: Any) -> Any:
            with torch.autocast(x.device.type, dtype, enabled=self.autocast):
                return forward(given).float()

        call = _without_gradients(in_half, images)
        return Prepared(call, partial(torch.save, placed.state_dict()), images, multiplied=frozenset([self.dtype]))


class OnnxRuntime(Contender):
    """ONNX Runtime on a CPU, with PyTorch's number of threads."""

    name = "onnxruntime"

    def obstacle(self, target: tvm.target.Target) -> str | None:
        return "on a CPU" if backend_of(target).on_gpu else not_installed("onnx", "onnxruntime")

    def prepare(self, module: Any, x: Any, target: tvm.target.Target) -> Prepared:
        import torch

        buffer = io.BytesIO()
        # The exporter through TorchScript, which needs no further package.
        torch.onnx.export(module, (x,), buffer, input_names=["x"], output_names=["y"], dynamo=False)
        model = buffer.getvalue()
        return Prepared(bound(model, x), lambda path: path.write_bytes(model), x)


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
        Tf32(),
        Compiled(),
        Half(),
        Half("pytorch-autocast", autocast=True),
        Half("torch-compile-half", compiles=True),
        Half("torch-compile-max-autotune", "max-autotune-no-cudagraphs", compiles=True),
        OnnxRuntime(),
        Tvm(),
    )
}
"""Every peer by its name, in the order of the rows."""
