"""Torch's own samples of its operators, and the outcome of each when it is imported, built and run."""

from __future__ import annotations

import itertools
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import tvmconv
from tvmconv.problem.errors import TvmconvError

RIGHT, REFUSED, WRONG, RAW = "right", "refused", "wrong", "raw error"

DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "int64", "bool")}

TOLERANCES = {
    torch.float64: (1e-6, 1e-6),
    torch.float32: (1e-5, 1e-5),
    torch.float16: (4e-3, 4e-3),
    torch.bfloat16: (3e-2, 3e-2),
}
"""The tolerance of a result of each dtype, relative to itself and relative to the largest of its tensor."""

MOST = 16
"""The largest number of samples that are built as one model; more save little more time."""

TIES = {"argsort": 0, "sort": 0, "topk": 1}
"""Operators that return indices of elements, of which torch leaves open equal ones, and their argument for the axis."""

EXCLUDED = {
    **dict.fromkeys(
        (
            "bernoulli", "cauchy", "exponential", "geometric", "log_normal", "multinomial",
            "nn.functional.alpha_dropout", "nn.functional.dropout",
            "nn.functional.dropout2d", "nn.functional.dropout3d",
            "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
            "nn.functional.rrelu", "normal", "normal.in_place",
            "normal.number_mean", "pca_lowrank", "rand_like", "randint", "randint_like", "randn", "randn_like",
            "svd_lowrank", "uniform",
        ),
        "random",
    ),
    **dict.fromkeys(
        (
            "empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_",
            "resize_as_",
        ),
        "memory that is not initialized",
    ),
    "as_strided.partial_views": "elements outside of the tensor, in the memory that it is a view of",
    **dict.fromkeys(("allclose", "broadcast_shapes", "equal", "item"), "no tensors"),
    **dict.fromkeys(
        (
            "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args", "jiterator_binary",
            "jiterator_binary_return_by_ref", "jiterator_unary",
        ),
        "of CUDA alone",
    ),
}  # fmt: skip
"""Operators that are left out, with the reason."""


@dataclass(frozen=True)
class Outcome:
    kind: str
    message: str = ""


class Call(torch.nn.Module):  # type: ignore[misc]
    """A module of an operator with a sample's arguments but its tensors, which are the inputs."""

    def __init__(self, name: str, function: Callable[..., Any], sample: Any) -> None:
        super().__init__()
        self.name, self.function = name, function
        self.arguments = sample.args
        leaves, self.form = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        self.others = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.tensor_indices = [index for index, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[index].detach() for index in self.tensor_indices)

    def forward(self, *tensors: torch.Tensor) -> Any:
        leaves = list(self.others)
        for index, tensor in zip(self.tensor_indices, tensors, strict=True):
            leaves[index] = tensor
        first, arguments, keywords = pytree.tree_unflatten(leaves, self.form)
        return self.function(first, *arguments, **keywords)


@cache
def operators() -> dict[str, Any]:
    """Return torch's operators by name, with the variant where one has several."""
    from torch.testing._internal.common_methods_invocations import op_db

    return {f"{op.name}.{op.variant_test_name}".rstrip("."): op for op in op_db}


def samples(name: str, dtype: str) -> Iterator[Call]:
    """Yield an operator's samples, the same in every process."""
    torch.manual_seed(0)
    op = operators()[name]
    if DTYPES[dtype] in op.dtypes:
        for sample in op.sample_inputs("cpu", DTYPES[dtype]):
            yield Call(name, op.op, sample)


class Together(torch.nn.Module):  # type: ignore[misc]
    """Several calls as one model, whose outputs are those of all calls in order."""

    def __init__(self, calls: Sequence[Call]) -> None:
        super().__init__()
        self.calls = torch.nn.ModuleList(calls)
        self.tensors = tuple(tensor for call in calls for tensor in call.tensors)

    def forward(self, *tensors: torch.Tensor) -> Any:
        rest, results = iter(tensors), []
        for call in self.calls:
            made = call(*itertools.islice(rest, len(call.tensors)))
            results += [leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        return tuple(results)


def outcomes(calls: Iterable[Call], together: bool = True) -> Iterator[Outcome]:
    """Yield the outcome of each call; up to `MOST` are one model, and tried one by one if that fails.

    With `together` False each call is tried by itself, so that one that ends the process is known.
    """
    rest, size = iter(calls), 1
    while some := list(itertools.islice(rest, size)):
        right = size > 1 and are_right(some)
        found = [Outcome(RIGHT) if right else classify(call) for call in some]
        yield from found
        grows = together and all(outcome.kind == RIGHT for outcome in found)
        size = min(2 * size, MOST) if grows else 1


def are_right(calls: Sequence[Call]) -> bool:
    """Return whether each of several calls is right when all are one model."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = [_run(call, call.tensors) for call in calls]
        model = Together(calls)
        try:
            results = _built_and_run(model, model.tensors)
        except Exception:  # which of them it is of is found by trying each
            return False
        if len(results) != sum(map(len, expected)):
            return False
        rest = iter(results)
        parts = [list(itertools.islice(rest, len(near))) for near in expected]
        return not any(map(_problem, calls, parts, expected))


def classify(call: Call) -> Outcome:
    """Return the outcome of a sample that torch itself can run, on the way that `torch.compile` takes to a network.

    The way is `torch.export`, not TorchDynamo, which would leave to torch whatever it cannot trace.
    """
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        expected = _run(call, call.tensors)
        try:
            results = _built_and_run(call, call.tensors)
        except TvmconvError as error:
            return Outcome(REFUSED, _line(error))
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            return Outcome(RAW, f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}: {_line(error)}")
        problem = _problem(call, results, expected)
        return Outcome(WRONG, problem) if problem else Outcome(RIGHT)


def _built_and_run(model: torch.nn.Module, tensors: tuple[torch.Tensor, ...]) -> list[Any]:
    results = tvmconv.build(tvmconv.import_model(model, tensors))(*tensors)
    return list(results) if isinstance(results, tuple) else [results]


def _problem(call: Call, found: list[Any], expected: list[torch.Tensor]) -> str:
    """Describe how a call's results differ from torch's and from those that torch computes in float64."""
    try:
        exact = _run(call, tuple(value.double() if value.is_floating_point() else value for value in call.tensors))
    except (RuntimeError, ValueError, TypeError):
        exact = expected
    if call.name in TIES:
        found, expected, exact = (_picked(call, values) for values in (found, expected, exact))
    return difference(found, expected, exact)


def _picked(call: Call, results: list[Any]) -> list[Any]:
    """Return the results with the elements at the indices instead of the indices."""
    argument_index = TIES[call.name]
    dim = call.arguments[argument_index] if len(call.arguments) > argument_index else -1
    return [*results[:-1], call.tensors[0].gather(dim, results[-1])]


def _run(call: Call, tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    results = call(*(tensor.clone() for tensor in tensors))
    return [value for value in pytree.tree_leaves(results) if isinstance(value, torch.Tensor)]


def difference(found: list[Any], expected: list[torch.Tensor], exact: list[torch.Tensor]) -> str:
    """Describe an error in a network's results; an empty text where each element is torch's, or that of float64."""
    if len(found) != len(expected):
        return f"{len(found)} outputs, not {len(expected)}"
    for index, (y, near, best) in enumerate(itertools.zip_longest(found, expected, exact)):
        if not isinstance(y, torch.Tensor):
            y = _as_torch(y)
        if (y.shape, y.dtype) != (near.shape, near.dtype):
            return f"output {index} is {y.dtype} {tuple(y.shape)}, not {near.dtype} {tuple(near.shape)}"
        usable = best is not None and best.shape == near.shape
        right = _close(y, near) | (_close(y, best.to(near.dtype)) if usable else False)
        if not right.all():
            at = tuple(int(i) for i in (~right).nonzero()[0])
            share = f"{int((~right).sum())} of {right.numel()} elements"
            return f"output {index}{list(at)} is {y[at].item()}, not {near[at].item()}; {share}"
    return ""


def _as_torch(array: Any) -> torch.Tensor:
    """Return an array of NumPy, which a network without inputs makes, as a tensor of torch, bfloat16 included."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(array.view("int16").copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def _close(y: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    if not reference.is_floating_point():
        return y == reference
    relative, absolute = TOLERANCES[reference.dtype]
    y, wide = y.double(), reference.double()
    finite = wide[wide.isfinite()].abs()
    scale = float(finite.max()) if finite.numel() else 0.0
    near = (y - wide).abs() <= relative * wide.abs() + absolute * scale
    return near | (y == wide) | (y.isnan() & wide.isnan())


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:400]
