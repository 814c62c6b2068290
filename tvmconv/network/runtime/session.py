"""The execution of a network: TVM's virtual machine with its code, and the memory that is kept from call to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.runtime.vm import VirtualMachine

from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.runtime.profiling import Recorder, Timed
from tvmconv.targets import llvm

POOLED = "pooled"
"""TVM's allocator that keeps memory that was freed for the next tensors of the same size, of any network."""

IN_CAPTURE = "main_in_capture"
"""A network's function for calls that a caller captures in a CUDA graph: "main" launches CUDA graphs itself."""

IN_MEMORY = "main_in_memory"
"""The function of a network with open sizes that takes arrays of bytes after the inputs, for intermediate tensors."""

IN_GRAPHS = "main_in_graphs"
"""The function `IN_MEMORY` with CUDA graphs, one for each set of sizes and of arrays."""

MEMORY_SIZES = "memory_sizes"
"""The function that says how many bytes each of these arrays needs for inputs of some shapes."""

MAX_SIZES = 64
"""The largest number of sizes that a network remembers from its calls, and of those that it keeps CUDA graphs for."""

Shapes = tuple[tuple[int, ...], ...]


class Session:
    """A network that runs on a device. Threads have to take turns.

    Where sizes are open, calls share arrays for the intermediate tensors, which grow to what the largest call needs:
    memory is neither taken for each new size nor kept for each old one. On a GPU, sizes that come again are captured
    in a CUDA graph, and replayed from then on.
    """

    def __init__(self, executable: Any, device: tvm.runtime.Device, allocator: str) -> None:
        """Take the network's code and the name of TVM's allocator for outputs."""
        self._executable, self._device, self._allocator = executable, device, allocator
        self._machine: VirtualMachine | None = None
        self._main: Any = None
        self._functions: set[str] = set()
        self._captured: list[VirtualMachine] = []
        self._arrays: list[tvm.runtime.Tensor] = []
        self._needed: dict[Shapes, tuple[int, ...]] = {}
        self._in_graphs: set[Shapes] = set()

    @property
    def machine(self) -> VirtualMachine:
        """TVM's virtual machine with the network's code; its function "main" takes tensors that are on the device."""
        if self._machine is None:
            with llvm.options_of(getattr(self._executable, "mod", self._executable)):
                self._machine = VirtualMachine(self._executable, self._device, self._allocator)
            names = (IN_CAPTURE, IN_MEMORY, IN_GRAPHS)
            self._functions = {name for name in names if self._machine.module.implements_function(name)}
        return self._machine

    @property
    def main(self) -> Any:
        """The machine's function of the whole network."""
        if self._main is None:
            self._main = self.machine["main"]
        return self._main

    def run(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs for inputs that are on the device."""
        main = self.main
        return self._in_arrays(inputs) if IN_MEMORY in self._functions else main(*inputs)

    def run_in_capture(self, inputs: Sequence[Any]) -> Any:
        """Return the outputs, which a caller captures in a CUDA graph; its memory stays as long as the session."""
        machine = self.machine
        if IN_CAPTURE not in self._functions:
            raise InvalidArgumentError(
                "network",
                "one whose memory may move, in a CUDA graph that is being captured",
                "one with CUDA graphs of its own, and no open sizes; docs/networks.md says which have none",
            )
        if machine not in self._captured:
            self._captured.append(machine)
        return machine[IN_CAPTURE](*inputs)

    def timed(self, inputs: Sequence[Any], repeat: int) -> list[list[Timed]]:
        """Return the times of the functions in each of `repeat` runs, after one run that is not timed.

        A function is called only after the device has finished the launches before it, and nothing is in a CUDA graph.
        """
        machine = self.machine
        name, arguments = "main", list(inputs)
        if IN_MEMORY in self._functions:
            self._grow(machine[MEMORY_SIZES](*inputs))
            machine = self.machine  # a new one, where graphs had to be dropped
            name, arguments = IN_MEMORY, [*inputs, *self._arrays]
        elif IN_CAPTURE in self._functions:
            name = IN_CAPTURE
        machine[name](*arguments)
        runs = []
        try:
            for _ in range(repeat):
                recorder = Recorder(self._device.sync)
                machine.set_instrument(recorder)
                machine[name](*arguments)
                runs.append(recorder.timed)
        finally:
            machine.set_instrument(None)
        return runs

    def release(self) -> None:
        """Give back the memory that is kept between calls: of arrays, CUDA graphs and, on a GPU, of the weights."""
        self._stop()
        self._arrays, self._needed = [], {}

    def _stop(self) -> None:
        """Drop the machine with its graphs and weights: TVM's has no way to drop a single graph.

        If this network takes memory from TVM's pool, which all networks on the device share, the pool frees its unused
        memory: TVM can neither tell whose it was nor clear one pool alone. Other networks lose no tensor, and allocate
        memory again in their next call. On a GPU this waits for calls that are still under way, so that no other
        machine's weights get memory that these still read.
        """
        self._machine = self._main = None
        self._in_graphs.clear()
        if self._allocator == POOLED:
            tvm.get_global_func("vm.builtin.memory_manager.clear")()

    def _in_arrays(self, inputs: Sequence[Any]) -> Any:
        shapes = tuple(tuple(each.shape) for each in inputs)
        is_new = shapes not in self._needed
        needed = tuple(self.machine[MEMORY_SIZES](*inputs)) if is_new else self._needed.pop(shapes)
        self._needed[shapes] = needed  # after all others
        if len(self._needed) > MAX_SIZES:
            del self._needed[next(iter(self._needed))]
        self._grow(needed)
        if is_new or IN_GRAPHS not in self._functions:
            return self.machine[IN_MEMORY](*inputs, *self._arrays)
        if shapes not in self._in_graphs and len(self._in_graphs) == MAX_SIZES:
            self._stop()
        self._in_graphs.add(shapes)
        return self.machine[IN_GRAPHS](*inputs, *self._arrays)

    def _grow(self, needed: Sequence[int]) -> None:
        """Let each array have at least the bytes that are needed. Graphs, which contain the old arrays, are dropped."""
        kept = {index: array for index, array in enumerate(self._arrays) if array.shape[0] >= needed[index]}
        if len(kept) == len(needed):
            return
        if self._in_graphs:
            self._stop()
        self._arrays = []  # the new arrays may get the memory of those that are too small
        self._arrays = [
            kept[index] if index in kept else tvm.runtime.empty((least,), "uint8", self._device)
            for index, least in enumerate(needed)
        ]
