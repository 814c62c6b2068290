"""TVM's graph executor, which went with Relay: a network whose inputs are set and outputs fetched one by one."""

from __future__ import annotations

from typing import Any

import tvm
from tvm.runtime.module import BenchmarkResult

from tvmconv.network import Network
from tvmconv.network.runtime.network import copied, input_operand
from tvmconv.problem.errors import InvalidArgumentError


class GraphModule:
    """Runs a network, as `relay.build(...)["default"](device)` and `tvmconv.load` return it.

    Inputs are named as in the model, or numbered from 0; they are copied when they are set. Arrays may be NumPy's,
    torch's, or any with DLPack; outputs are tensors of TVM on the network's device.
    """

    def __init__(self, module: Network) -> None:
        self._network = module
        self._inputs: dict[str, tvm.runtime.Tensor] = {}
        self._outputs: tuple[tvm.runtime.Tensor, ...] = ()

    def set_input(self, key: str | int | None = None, value: Any = None, **params: Any) -> None:
        """Set the input `key` to `value`, and named inputs to their values."""
        given = [] if key is None else [(key, value)]
        for name, array in [*given, *params.items()]:
            spec = self._network.inputs[self._index(name)]
            self._inputs[spec.name] = copied(input_operand(spec, array), self._network.device)

    def run(self, **input_dict: Any) -> None:
        """Compute the outputs from the inputs, after setting those that are given."""
        self.set_input(**input_dict)
        outputs = self._network(**self._inputs)
        self._outputs = outputs if isinstance(outputs, tuple) else (outputs,)

    def get_num_inputs(self) -> int:
        """Return the number of the network's inputs."""
        return len(self._network.inputs)

    def get_num_outputs(self) -> int:
        """Return the number of the network's outputs."""
        return len(self._network.outputs)

    def get_input(self, index: str | int) -> tvm.runtime.Tensor:
        """Return an input as it was set, by its name or number."""
        name = self._network.inputs[self._index(index)].name
        if name not in self._inputs:
            raise InvalidArgumentError("index", index, "an input that was set")
        return self._inputs[name]

    def get_output(self, index: int, out: tvm.runtime.Tensor | None = None) -> tvm.runtime.Tensor:
        """Return an output of the last run by its number; with `out`, copy it to that."""
        if not self._outputs:
            raise InvalidArgumentError("index", index, "to be asked for after run()")
        return self._outputs[index] if out is None else out.copyfrom(self._outputs[index])

    def benchmark(
        self,
        device: tvm.runtime.Device,
        func_name: str = "run",
        repeat: int = 5,
        number: int = 5,
        min_repeat_ms: int = 0,
        **input_dict: Any,
    ) -> BenchmarkResult:
        """Time runs of the network without any copy of inputs or outputs: `repeat` means of `number` runs each."""
        if func_name != "run":
            raise InvalidArgumentError("func_name", func_name, "'run'")
        self.set_input(**input_dict)
        machine = self._network.machine
        timer = machine.time_evaluator("main", device, number=number, repeat=repeat, min_repeat_ms=min_repeat_ms)
        return timer(*(self.get_input(index) for index in range(self.get_num_inputs())))

    def _index(self, key: str | int) -> int:
        names = [spec.name for spec in self._network.inputs]
        if key in names:
            return names.index(str(key))
        if isinstance(key, int) and 0 <= key < len(names):
            return key
        raise InvalidArgumentError("key", key, f"one of {', '.join(names)}, or its number")
