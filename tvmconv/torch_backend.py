"""The backend of `torch.compile(model, backend="tvmconv")`, which torch finds by an entry point of the package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .errors import InvalidArgumentError
from .network import Network, build, import_model
from .network.torch_importer import export_module
from .targets import backend_on

if TYPE_CHECKING:
    import torch

Inputs = tuple[Any, ...]
"""The arguments that torch calls a graph with: its weights among them, and sizes as integers."""


def compile_graph(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., tuple[Any, ...]]:
    """Compile a graph that torch.compile has found in a model; for inference alone.

    A network is built when the graph is first run with inputs of certain shapes, for these, so that its kernels are
    tvmconv's whatever torch leaves open; and again after weights have changed. Weights are constants in it. Tensors of
    torch go in and come out without a copy. Raises `InvalidArgumentError` where gradients are wanted, and
    `UnsupportedModelError` for a graph that cannot be imported.
    """
    import torch

    weights = [i for i, value in enumerate(example_inputs) if _is_weight(value)]
    built: dict[Inputs, _Built] = {}
    state: list[tuple[Any, int]] = []

    def run(*inputs: Any) -> tuple[Any, ...]:
        if not any(map(_is_tensor, inputs)):
            return tuple(graph(*inputs))
        if torch.is_grad_enabled() and any(value.requires_grad for value in inputs if isinstance(value, torch.Tensor)):
            raise InvalidArgumentError(
                "inputs",
                "tensors that require gradients",
                "a model in eval mode, called under torch.no_grad(): the backend tvmconv is for inference",
            )
        now = [(inputs[i], 0 if inputs[i].is_inference() else inputs[i]._version) for i in weights]
        if not all(old is new and before == after for (old, before), (new, after) in zip(state, now, strict=False)):
            built.clear()
        state[:] = now
        rest = [value for i, value in enumerate(inputs) if i not in known]
        key = tuple((value.shape, value.dtype, value.device) if _is_tensor(value) else value for value in rest)
        if key not in built:
            built[key] = _Built(graph, inputs, weights)
        return built[key](rest)

    known = frozenset(weights)
    return run


class _Built:
    """A network built from a graph for its present weights and for the sizes and shapes of its tensors."""

    def __init__(self, graph: torch.fx.GraphModule, inputs: Inputs, weights: Sequence[int]) -> None:
        import torch

        tensors = [i for i, value in enumerate(inputs) if _is_tensor(value) and i not in weights]
        others: dict[int, Any] = {}
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]

        class Bound(torch.nn.Module):  # type: ignore[misc]
            """The graph as a module whose inputs and outputs are its tensors alone."""

            def __init__(self) -> None:
                super().__init__()
                for i in weights:
                    self.register_buffer(names[i], inputs[i].detach())

            def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
                values = list(inputs)
                for i in weights:
                    values[i] = getattr(self, names[i])
                for i, tensor in zip(tensors, given, strict=True):
                    values[i] = tensor
                results = graph(*values)
                others.update({i: value for i, value in enumerate(results) if not isinstance(value, torch.Tensor)})
                return tuple(value for value in results if isinstance(value, torch.Tensor))

        examples = tuple(inputs[i].detach() for i in tensors)
        device = next((value.device.type for value in inputs if _is_tensor(value)), "cpu")
        program = export_module(Bound(), examples)
        self._network: Network = build(import_model(program), backend_on(device).kind)
        self._others = others

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        results = self._network(*(value.detach() for value in values if _is_tensor(value)))
        outputs = list(results) if isinstance(results, tuple) else [results]
        for i in sorted(self._others):
            outputs.insert(i, self._others[i])
        return tuple(outputs)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_weight(value: Any) -> bool:
    """Return whether torch.compile marked a value as a parameter or buffer, or a user marked it as static."""
    return _is_tensor(value) and getattr(value, "_dynamo_static_input_type", None) is not None
