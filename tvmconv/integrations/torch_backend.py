"""The backend of `torch.compile(model, backend="tvmconv")`, which torch finds by an entry point of the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tvm
from tvm import relax, tirx

from tvmconv.autotvm.history import apply_history_best
from tvmconv.dispatch import algorithms_for
from tvmconv.network import Model, Network, build, import_model
from tvmconv.network.frontends.torch.importer import export_module
from tvmconv.network.passes.products import is_slow_of_open_sizes
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import one_of
from tvmconv.problem.errors import InvalidArgumentError, UnsupportedModelError
from tvmconv.problem.parameters import SPARSE_MODES
from tvmconv.problem.precision import DEFAULT, NETWORK_WORDS
from tvmconv.targets import backend_on, resolve_target

from .torch_splitting import split_graph

if TYPE_CHECKING:
    import torch

Inputs = tuple[Any, ...]
"""The arguments that torch calls a graph with: its weights among them, and sizes as integers."""


def compile_graph(
    graph: torch.fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., tuple[Any, ...]]:
    """Compile a graph that torch.compile has found in a model; for inference alone.

    A network is built when the graph is first run with inputs of certain shapes, and again after weights have changed.
    Where torch leaves the batch open, the network is for any batch, provided that each convolution has a kernel for any
    batch, and no products of matrices depend on it. Other sizes are those of these inputs, so that its kernels are
    tvmconv's whatever torch leaves open. Weights are constants in it. Tensors of torch go in and come out without a
    copy. A graph with operators that cannot be imported is split: torch runs these, which a warning says.

    `options` are "precision" and "sparse", as for `tvmconv.build`, and "records", the path of a log of `tvmconv tune`
    or several of them. `mode` is None, "default" or "reduce-overhead", which make no difference: on a GPU networks
    replay CUDA graphs by themselves. Raises `InvalidArgumentError` for other options, and where gradients are wanted.
    """
    weights = [i for i, value in enumerate(example_inputs) if _is_weight(value)]
    return _compiled(graph, weights, Choice.of(mode, options), splits=True)


def _compiled(
    graph: torch.fx.GraphModule, weights: Sequence[int], choice: Choice, splits: bool
) -> Callable[..., tuple[Any, ...]]:
    """Return the function that runs a graph, of whose inputs some are weights, and splits it where it has to."""
    import torch

    placeholders = [node for node in graph.graph.nodes if node.op == "placeholder"]
    numbers = {i for i, node in enumerate(placeholders) if _is_number(node)}
    batches = _open_batches([node.meta.get("example_value") for node in placeholders])
    built: dict[Inputs, _Built] = {}
    split: dict[Inputs, Callable[..., tuple[Any, ...]]] = {}
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
        if numbers:
            inputs = tuple(_Number(value.item()) if i in numbers else value for i, value in enumerate(inputs))
        rest = {i: value for i, value in enumerate(inputs) if i not in known}
        exact_kind, kind = _kind(rest, {}), _kind(rest, batches)
        if exact_kind in split:
            return split[exact_kind](*inputs)
        if kind not in built:
            try:
                network = _Built(graph, inputs, weights, batches, choice)
            except UnsupportedModelError as error:
                if not splits:
                    raise
                compile_part = partial(_compiled, choice=choice, splits=False)
                split[exact_kind] = split_graph(graph, inputs, weights, compile_part, error)
                return split[exact_kind](*inputs)
            if not network.takes_any_batch:
                batches.clear()
            built[_kind(rest, batches)] = network
        return built[_kind(rest, batches)](list(rest.values()))

    known = frozenset(weights)
    return run


class Choice(NamedTuple):
    """The options of the backend, as `compile_graph` describes them."""

    precision: str = DEFAULT
    sparse: str = "auto"
    records: tuple[Path, ...] = ()

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Choice:
        """Return the options that `torch.compile` passes on; raise `InvalidArgumentError` for others."""
        if mode not in (None, "default", "reduce-overhead"):
            expected = "'default' or 'reduce-overhead': kernels are tuned by `tvmconv tune`, whose log is for options="
            raise InvalidArgumentError("mode", mode, f"{expected}{{'records': ...}}")
        if options is not None and not isinstance(options, Mapping):
            raise InvalidArgumentError("options", options, "a dictionary, such as {'precision': 'tf32'}")
        given = dict(options or {})
        if unknown := sorted(set(given) - set(cls._fields)):
            raise InvalidArgumentError("options", unknown[0], f"options among {', '.join(cls._fields)}")
        for name, words in (("precision", NETWORK_WORDS), ("sparse", SPARSE_MODES)):
            if name in given and given[name] not in words:
                raise InvalidArgumentError(f"options[{name!r}]", given[name], one_of(words))
        paths = given.pop("records", ())
        listed = [paths] if isinstance(paths, (str, PathLike)) else paths
        if not isinstance(listed, Sequence) or not all(isinstance(path, (str, PathLike)) for path in listed):
            raise InvalidArgumentError("options['records']", paths, "the path of a tuning log, or several")
        records = tuple(map(Path, listed))
        for path in records:
            if not path.is_file():
                raise InvalidArgumentError("options['records']", str(path), "the path of a tuning log")
        return cls(**given, records=records)

    def build(self, model: Model, target: str) -> Network:
        """Return the network of a model by these options."""
        with ExitStack() as stack:
            for path in self.records:
                stack.enter_context(apply_history_best(path))
            return build(model, target, self.sparse, self.precision)


class _Number(float):
    """A number that a graph reads from a tensor without axes, as which torch passes numbers that it leaves open."""

    def item(self) -> float:
        return float(self)


def _is_number(placeholder: torch.fx.Node) -> bool:
    """Return whether a graph reads an input as a floating-point number alone."""
    example = placeholder.meta.get("example_value")
    is_floating = _is_tensor(example) and example.is_floating_point()
    return is_floating and all(user.op == "call_method" and user.target == "item" for user in placeholder.users)


def _open_batches(examples: Sequence[Any]) -> dict[int, int]:
    """Return the indices of inputs with a batch that torch leaves open, each with the index of a tensor that has it.

    Such inputs are tensors, and integers that are the batch. A batch is a size that is the first one of some tensors,
    and no other size depends on it.
    """
    first: dict[Any, int] = {}
    others = set()
    for index, example in enumerate(examples):
        for axis, size in enumerate(example.shape if _is_tensor(example) else ()):
            if (symbol := _symbol(size)) is None:
                continue
            if axis == 0 and symbol.is_Symbol:
                first.setdefault(symbol, index)
            else:
                others |= symbol.free_symbols
    symbols = [_symbol(example.shape[0] if _is_tensor(example) and example.ndim else example) for example in examples]
    return {i: first[symbol] for i, symbol in enumerate(symbols) if symbol in first and symbol not in others}


def _symbol(size: Any) -> Any:
    """Return torch's expression of a size that it leaves open; None for any other value."""
    import torch

    return size.node.expr if isinstance(size, torch.SymInt) else None


def _kind(inputs: Mapping[int, Any], batches: Mapping[int, int]) -> Inputs:
    """Return a key for the network that inputs need: shapes without open batches, dtypes, devices and numbers."""
    return tuple(
        (value.shape[i in batches :], value.dtype, value.device) if _is_tensor(value) else i in batches or value
        for i, value in inputs.items()
    )


class _Built:
    """A network built from a graph for its present weights and for the sizes and shapes of its tensors.

    It is for any batch of the inputs in `batches`, where convolutions and products have kernels for that.
    """

    def __init__(
        self,
        graph: torch.fx.GraphModule,
        inputs: Inputs,
        weights: Sequence[int],
        batches: Mapping[int, int],
        choice: Choice,
    ) -> None:
        import torch

        tensors = [i for i, value in enumerate(inputs) if _is_tensor(value) and i not in weights]
        others: dict[int, Any] = {}
        symbols: dict[Any, int] = {}
        names = [node.name for node in graph.graph.nodes if node.op == "placeholder"]

        class Bound(torch.nn.Module):  # type: ignore[misc]
            """The graph as a module whose inputs and outputs are tensors only."""

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
                for i, index in batches.items():
                    if i not in tensors:
                        values[i] = values[index].shape[0]
                    elif (symbol := _symbol(values[i].shape[0])) is not None:
                        symbols[symbol] = tensors.index(i)
                results = graph(*values)
                others.update({i: value for i, value in enumerate(results) if not isinstance(value, torch.Tensor)})
                return tuple(value for value in results if isinstance(value, torch.Tensor))

        examples = tuple(inputs[i].detach() for i in tensors)
        device = next((value.device.type for value in inputs if _is_tensor(value)), "cpu")
        target = backend_on(device).kind
        model = None
        if batches:
            sizes = {"given": tuple({0: torch.export.Dim.AUTO} if i in batches else {} for i in tensors)}
            with suppress(UnsupportedModelError):  # with the sizes of these inputs it may be supported
                model = import_model(export_module(Bound(), examples, sizes))
        opened = [index for index, i in enumerate(tensors) if i in batches]
        self.takes_any_batch = model is not None and _takes_any_batch(model, opened, target)
        """True if the network is for any batch, and not for that of the inputs alone."""
        if model is None or not self.takes_any_batch:
            model = import_model(export_module(Bound(), examples))
        self._network: Network = choice.build(model, target)
        self._others, self._symbols = others, symbols

    def __call__(self, values: Sequence[Any]) -> tuple[Any, ...]:
        tensors = [value.detach() for value in values if _is_tensor(value)]
        results = self._network(*tensors)
        outputs = list(results) if isinstance(results, tuple) else [results]
        sizes = {symbol: tensors[index].shape[0] for symbol, index in self._symbols.items()}
        for i, value in sorted(self._others.items()):
            outputs.insert(i, value if (expression := _symbol(value)) is None else int(expression.subs(sizes)))
        return tuple(outputs)


def _takes_any_batch(model: Model, indices: Sequence[int], target: str) -> bool:
    """Return whether these inputs of a model have an open batch that all convolutions and products have kernels for."""
    resolved = resolve_target(target)
    if is_slow_of_open_sizes(model.mod, resolved) or _has_open_weights(model.mod):
        return False
    return all(isinstance(model.inputs[index].shape[0], str) for index in indices) and all(
        each.workload and algorithms_for(Problem(each.workload, open_sizes=each.open_sizes), resolved)
        for each in model.convolutions()
        if each.open_sizes or each.is_too_open
    )


def _has_open_weights(mod: tvm.IRModule) -> bool:
    """Return whether a convolution has a weight with open sizes, such as a weight that is an input."""
    found = []

    def visit(value: relax.Expr) -> None:
        if isinstance(value, relax.Call) and getattr(value.op, "name", "").startswith("relax.nn.conv"):
            shape = value.args[1].ty.shape
            found.append(shape is None or not all(isinstance(size, tirx.IntImm) for size in shape))

    relax.analysis.post_order_visit(mod["main"], visit)
    return any(found)


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _is_weight(value: Any) -> bool:
    """Return whether torch.compile marked a value as a parameter or buffer, or a user marked it as static."""
    return _is_tensor(value) and getattr(value, "_dynamo_static_input_type", None) is not None
