"""Build a network from a model."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from tvmconv.problem.precision import DEFAULT
from tvmconv.targets import backend_of, resolve_target

from .compiling import compile_network
from .graph.layers import Convolution, Layer
from .importing import import_model
from .indices.checks import with_index_checks
from .model import Model
from .passes.attention import use_attention
from .passes.carrying import carry_channels
from .passes.frames import with_steps_as_channels
from .passes.half import with_precision
from .passes.kernels import use_kernels
from .passes.matrices import with_rows_in_matrices
from .passes.parts import slice_parts
from .passes.powers import simplify_powers
from .passes.products import use_products
from .passes.quantized.lowering import lower_quantization
from .passes.safe_softmax import with_safe_softmax
from .passes.scales import scale_results
from .passes.summing import sum_in_float32
from .recurrence import lower_recurrences
from .runtime.network import ALIGNMENT, Network
from .sites import find_convolutions
from .sites.batch_norm import simplify_batch_norms
from .sizes.facts import SizeFacts
from .sizes.limits import require_what_kernels_index, with_limits

logger = logging.getLogger(__name__)


def build(
    model: Any, target: Any = "llvm", sparse: str = "auto", precision: str = DEFAULT, *, check_indices: bool = True
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
    """
    resolved = resolve_target(target)
    source = model if isinstance(model, Model) else import_model(model)
    imported = slice_parts(source.mod)
    if backend_of(resolved).on_gpu:
        imported = with_safe_softmax(scale_results(imported))
    else:
        imported = with_steps_as_channels(imported)
    if sparse != "always" and (carrying := carry_channels(imported, resolved, precision)) is not imported:
        imported, sparse = carrying, "never"  # zeros beside identities are many, and not those that pay
    imported = with_rows_in_matrices(imported, resolved)
    mod, word = with_precision(imported, resolved, precision)
    mod, layers = use_kernels(mod, resolved, sparse, word)
    mod, attention = use_attention(mod, resolved, word)
    mod, products = use_products(mod, resolved, word)
    products = (*attention, *products)
    _tell_of_slow_layers(layers, "convolutions")
    _tell_of_slow_layers(products, "matrix products")
    mod = sum_in_float32(simplify_powers(simplify_batch_norms(lower_quantization(mod, resolved))), resolved)
    mod, checks = with_index_checks(mod) if check_indices else (mod, ())
    mod, recurrent = lower_recurrences(mod, resolved)
    executable = compile_network(mod, resolved)
    opened = source.open_sizes
    sites = [site for site in find_convolutions(imported) if site.workload is not None] if opened else []
    facts = SizeFacts(opened, source.conditions)
    require_what_kernels_index(sites, facts)
    return Network(
        executable,
        str(resolved),
        source.inputs,
        source.outputs,
        (*layers, *products, *recurrent),
        source.constant_outputs(),
        with_limits(sites, opened),
        facts.conditions,
        word,
        checks,
        ALIGNMENT if backend_of(resolved).on_gpu else 1,
    )


def _tell_of_slow_layers(layers: Sequence[Layer], kind: str) -> None:
    """Warn of layers of a kind that the caller could give kernels of tvmconv, by their sizes; log others without."""
    convolutions = [layer.convolution for layer in layers]
    left = [each for each in convolutions if each.obstacle is not None]
    for too_open, tell in ((True, partial(warnings.warn, stacklevel=3)), (False, logger.info)):
        slow = [each for each in left if each.is_too_open is too_open]
        if not slow:
            continue
        reasons = "; ".join(dict.fromkeys(str(each.obstacle) for each in slow))
        tell(f"{_share(slow, convolutions, kind)} on TVM's own loops, which are slow: {reasons}")


def _share(some: Sequence[Convolution], convolutions: Sequence[Convolution], kind: str) -> str:
    """Say how many of the convolutions of a kind some are, and which part of the FLOPs they have."""
    text = f"{len(some)} of {len(convolutions)} {kind}"
    if any(each.flops is None for each in convolutions):
        return text
    flops, total = (sum(each.flops or 0 for each in group) for group in (some, convolutions))
    if not total:  # those of no images
        return text
    return f"{text}, with {100 * flops / total:.3g}% of their FLOPs,"
