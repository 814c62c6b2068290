"""Build a network from a model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

import tvm

from tvmconv.problem.errors import UnsupportedModelError
from tvmconv.problem.parameters import SparseMode
from tvmconv.problem.precision import DEFAULT, NetworkWord
from tvmconv.targets import backend_of, resolve_target

from . import passes
from .compiling import compile_network
from .graph.faults import Refused
from .graph.layers import Convolution, Layer
from .importing import import_model
from .model import Model
from .passes.context import Context
from .runtime.network import ALIGNMENT, Network
from .sizes.facts import SizeFacts

logger = logging.getLogger(__name__)


def build(
    model: Any,
    target: Any = "llvm",
    sparse: SparseMode | str = "auto",
    precision: NetworkWord | str = DEFAULT,
    *,
    check_indices: bool = True,
) -> Network:
    """Compile a model for a target: its convolutions with the kernels of tvmconv, the rest with TVM's.

    `model` is what `import_model` returns, or anything it takes without `inputs`; `target` is anything that
    `resolve_target` takes. Building for "cuda" needs no GPU, running does. Raises `UnsupportedModelError` for a model
    that can be imported and that TVM cannot compile, with the operator at fault.

    `sparse` says which weights are compiled into their kernels, where nothing is left of their zeros: "auto", those
    with many zeros; "always", all; or "never". `precision` is that of tvmconv's kernels, as for `tvmconv.compile`; what
    TVM computes is the same for each. "float16" and "bfloat16" bring a network in float32 to half precision, as
    `tvmconv.problem.precision.HALVES` promises; they are refused for a target without instructions for it.

    `check_indices` says whether a call looks for indices out of range, of Gather, Scatter and embeddings, and raises
    `InvalidArgumentError`. Without it they are the first or the last of their axis, as no other element is ever read or
    written. Constants and indices that are always in range, such as those of ArgMax, take no check in a call.

    Convolutions and matrix products that are left to TVM because of sizes that are known only when the network runs
    are told in a warning, with their share of the FLOPs; `Network.layers` says what computes each.

    >>> import torch, tvmconv
    >>> x = torch.zeros(1, 3, 16, 16)
    >>> model = tvmconv.import_model(torch.nn.Conv2d(3, 8, 3), (x,))
    >>> network = tvmconv.build(model, "llvm")
    >>> network(x).shape
    torch.Size([1, 8, 14, 14])
    >>> print(network.layers[0].kernel)
    tvmconv cpu/direct
    """
    resolved = resolve_target(target)
    source = model if isinstance(model, Model) else import_model(model)
    context = _context(source, resolved, precision, sparse, check_indices)
    mod = passes.run(passes.BUILDING, source.mod, context)
    _tell_of_slow_layers(context.convolutions, "convolutions")
    _tell_of_slow_layers(context.products, "matrix products")
    return Network(
        compile_network(mod, resolved),
        str(resolved),
        source.inputs,
        source.outputs,
        context.layers,
        source.constant_outputs(),
        context.open_sizes,
        context.facts.conditions,
        context.precision,
        context.checks,
        1 if backend_of(resolved).alignment is None else ALIGNMENT,
    )


def _context(
    source: Model, target: tvm.target.Target, precision: str, sparse: str = "auto", check_indices: bool = True
) -> Context:
    facts = SizeFacts(source.open_sizes, source.conditions)
    return Context(target, precision, sparse, check_indices, facts, source.open_sizes)


def modules_behind_passes(
    model: Model, target: tvm.target.Target, precision: str = DEFAULT
) -> list[tuple[str, tvm.IRModule]]:
    """Return the module of a model, and the module after each pass of a build up to its scheduled functions, by name.

    Raises what `build` raises.
    """
    modules = [("import_model", model.mod)]
    try:
        passes.run(
            (*passes.BUILDING, *passes.COMPILING),
            model.mod,
            _context(model, target, precision),
            lambda name, mod: modules.append((name, mod)),
        )
    except Refused as refusal:
        raise UnsupportedModelError(f"the pass after {modules[-1][0]} failed: {refusal.problem}") from None
    return modules


def _tell_of_slow_layers(layers: Sequence[Layer], kind: str) -> None:
    """Warn of layers of a kind that the caller could give kernels of tvmconv, by their sizes; log others without."""
    convolutions = [layer.convolution for layer in layers]
    left = [each for each in convolutions if each.obstacle is not None]
    for too_open, tell in ((True, partial(warnings.warn, stacklevel=3)), (False, logger.info)):
        slow = [each for each in left if each.is_too_open is too_open]
        if not slow:
            continue
        reasons = "; ".join(dict.fromkeys(str(each.obstacle) for each in slow))
        tell(f"{_share(slow, convolutions, kind)} run on TVM's own loops, which are slow: {reasons}")


def _share(some: Sequence[Convolution], convolutions: Sequence[Convolution], kind: str) -> str:
    """Say how many of the convolutions of a kind some are, and their share of the FLOPs."""
    text = f"{len(some)} of {len(convolutions)} {kind}"
    if any(each.flops is None for each in convolutions):
        return text
    flops, total = (sum(each.flops or 0 for each in group) for group in (some, convolutions))
    if not total:  # an empty batch takes no operations
        return text
    return f"{text}, with {100 * flops / total:.3g}% of their FLOPs,"
