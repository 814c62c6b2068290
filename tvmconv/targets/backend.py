"""The description of a kind of target: everything that callers would otherwise ask its name for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tvmconv.problem.dtypes import StorageType

if TYPE_CHECKING:
    import tvm


class DeviceFacts(msgspec.Struct, frozen=True):
    """The device that a kernel was measured on: figures of one say little about another."""

    name: str
    """The name that the driver has for a GPU, or the CPU for itself."""
    driver: str | None = None
    """The version of the NVIDIA driver; None for a CPU."""
    threads: int | None = None
    """The number of threads that kernels are spread over; None for a GPU."""

    def __str__(self) -> str:
        return self.name if self.threads is None else f"{self.name}, {self.threads} thread{'s' * (self.threads > 1)}"


@dataclass(frozen=True)
class Backend(ABC):
    """The abilities of kernels of a kind of target, and the devices that run them.

    A backend that is added needs a class, an entry in `resolving.BACKENDS`, and a folder of templates.
    """

    kind: str
    """The kind of the targets, in TVM's words: "cuda" or "llvm"."""
    device_type: str
    """The devices' type, by which TVM and torch know it: "cuda" or "cpu"."""
    templates: str
    """The folder of `schedules/` with its templates."""
    views: tuple[str, ...]
    """Forms in which a kernel can be shown: its configuration, several texts, the resources that it takes."""
    on_gpu: bool
    """Kernels run in streams on a GPU, which a caller waits for and may capture in graphs; else in the call."""
    uses_host_cores: bool
    """Kernels run on cores of the machine, which builds would disturb while kernels are timed."""
    kernels_by_batch: bool
    """The fastest kernel depends on the batch so much that some ranges of an open size are worth a kernel each."""
    limits_open_arrays: bool
    """Kernels of open sizes count the bytes of an array in 32 bits, and refuse larger arrays."""
    keeps_kernels: bool
    """Choosing and building kernels takes so long that the store on disk keeps estimates and code."""
    asynchronous_copies: bool
    """Copies that schedules mark as asynchronous run behind the computation."""
    rounds_bfloat16: bool
    """TVM's code rounds float32 to bfloat16 to nearest even and keeps NaN; else `rounding.with_rounding` does."""
    alignment: int | None
    """Bytes to which operands are aligned; None where an element's own alignment is enough."""
    workspace_is_passed: bool
    """A caller passes the memory that a kernel takes besides its operands; else TVM's pool has it."""
    any_strided_output: bool
    """Kernels of all templates can store their output as channels of a larger tensor; else `Layouts` says which can."""
    channels_in_blocks: bool
    """Tensors between the convolutions of a network may be in blocks of channels."""
    max_products: int
    """The most multiply-adds of a thread in a sparse kernel: they take two cores about a minute to compile."""
    gemm_size: int | None
    """Rows of square matrices whose product tells the peak rate; None where multiply-adds in registers tell it."""
    missing: str
    """The device in words, for the message that there is none."""

    @property
    def text_views(self) -> tuple[str, ...]:
        """Return the views of a kernel that are text: the scheduled function first, then what becomes of it."""
        return tuple(view for view in self.views if view not in ("config", "resources"))

    @abstractmethod
    def complete(self, config: dict[str, Any]) -> dict[str, Any]:
        """Return a target's fields completed by defaults; raise `InvalidArgumentError` for fields that are wrong."""

    @abstractmethod
    def arch(self, config: Mapping[str, Any]) -> str:
        """Return the architecture that a target, by its fields, makes code for, such as "sm_90" or "x86_64"."""

    @abstractmethod
    def computes_with(self, config: Mapping[str, Any], storage: StorageType) -> bool:
        """Return whether kernels of a target, by its fields, can read and write elements of a type."""

    @abstractmethod
    def is_for(self, config: Mapping[str, Any], device: DeviceFacts) -> bool:
        """Return whether a target, by its fields, is for such a device, as it is unless it names another model."""

    @abstractmethod
    def arch_here(self, number: int = 0) -> str | None:
        """Return the architecture of this machine's device; None where there is none."""

    @abstractmethod
    def device(self, config: Mapping[str, Any]) -> tvm.runtime.Device:
        """Return the device that runs kernels of a target, by its fields; `NoDeviceError` says what is missing."""

    @abstractmethod
    def facts(self, number: int = 0) -> DeviceFacts | None:
        """Return the facts of this machine's device with a number; None where there is no such device."""

    @abstractmethod
    def require_timer(self) -> None:
        """Raise `MissingPackageError` where a package is missing that timing needs."""

    @abstractmethod
    def costs(
        self,
        module: tvm.runtime.Module,
        name: str,
        arguments: Sequence[tvm.runtime.Tensor],
        device: tvm.runtime.Device,
        number: int,
        repeat: int,
        min_repeat_ms: int,
        flush: bool = False,
    ) -> list[float]:
        """Return the seconds of one call of a module's function, averaged over each of `repeat` measurements.

        Each has `number` calls, or as many as take `min_repeat_ms`; the function has run once before. With `flush` a
        CPU's caches lose all arguments but the first before each.
        """

    @abstractmethod
    def text(self, module: tvm.runtime.Module, view: str, target: tvm.target.Target) -> str:
        """Return a built kernel as text, in one of the `text_views` but the first."""
