"""The passes, in order: from an importer's module to one that TVM's virtual machine runs.

A pass is a function from a module to the next one; its docstring shows both. This file says in which order tvmconv's
passes over Relax modules run, and on which devices. `IMPORTING` prepares a model for any target, `BUILDING` gives it
kernels for one, `COMPILING` lowers and schedules the operators between the kernels. After them,
`execution.network_pipeline` turns the module into calls of the virtual machine and plans its memory, and
`lowering.modules.build` has the passes over single functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tvm
from tvm import relax

from tvmconv.targets import backend_of

from ..between.cpu.spreading import lower_and_fuse, spread_over_threads
from ..between.gpu.fusion import lower_and_fuse_for_gpu
from ..between.gpu.spreading import spread_over_gpu
from ..graph.constants import fold_constants
from ..graph.shuffles import expand_shuffles, gather_shuffles
from ..indices.ranges import with_indices_in_range
from ..sites.batch_norm import simplify_batch_norms
from ..sizes.branch_conditions import with_branch_checks
from ..sizes.facts import SizeFacts
from ..sizes.fixed import with_fixed_sizes
from ..sizes.operators import require_sizes_of_operators
from .arithmetic import simplify_powers, sum_in_float32
from .context import Context
from .convolutions.kernels import (
    call_kernels,
    choose_sparse,
    choose_templates,
    compile_sparse_kernels,
    plan_concat_slices,
    plan_layouts,
    plan_slices,
)
from .convolutions.layers import find_layers, with_exact_sums
from .early.carrying import carry_channels
from .early.frames import with_steps_as_channels
from .early.heads import scale_results, slice_single_indices
from .early.limits import limit_open_sizes
from .early.matrices import with_rows_in_matrices
from .early.safe_softmax import with_safe_softmax
from .early.transposed import spread_transposed
from .fused import choose_fused, use_fused
from .fusible import flatten_concatenations, outline_branches, permute_slices
from .half import with_precision
from .index_checks import with_index_checks
from .products import use_products
from .quantized.integers import keep_integers
from .quantized.lowering import lower_quantization
from .quantized.tables import use_tables
from .quantized.zero_points import split_zero_points
from .recurrences import lower_recurrences


class Pass(NamedTuple):
    """A function from a module, and the object that its list shares (`Imported` or `Context`), to the next module."""

    name: str
    function: Callable[[tvm.IRModule, Any], tvm.IRModule]
    device: str | None = None
    """The type of the devices that the pass is for, "cpu" or "cuda"; None for all."""


def _of_context(function: Callable[[tvm.IRModule, Any], tvm.IRModule], device: str | None = None) -> Pass:
    """Return a `Pass` that calls a function with the module and the context."""
    return Pass(function.__name__, function, device)


def _of_target(function: Callable[[tvm.IRModule, tvm.target.Target], tvm.IRModule], device: str | None = None) -> Pass:
    """Return a `Pass` that calls a function with the module and the target."""
    return Pass(function.__name__, lambda mod, context: function(mod, context.target), device)


def _of_module(function: Callable[[tvm.IRModule], tvm.IRModule], device: str | None = None) -> Pass:
    """Return a `Pass` that calls a function with the module alone."""
    return Pass(function.__name__, lambda mod, _: function(mod), device)


def _of_facts(function: Callable[[tvm.IRModule, SizeFacts], tvm.IRModule]) -> Pass:
    """Return a `Pass` that calls a function with the imported module and the facts about its sizes."""
    return Pass(function.__name__, lambda mod, imported: function(mod, imported.facts))


def _of_words(function: Callable[[tvm.IRModule, SizeFacts, Mapping[str, str]], tvm.IRModule]) -> Pass:
    """Return a `Pass` that also gives the function `Imported.words`, the texts by which errors name nodes."""
    return Pass(function.__name__, lambda mod, imported: function(mod, imported.facts, imported.words))


def _of_tvm(tvms: tvm.transform.Pass) -> Pass:
    return Pass(str(tvms.info.name), lambda mod, _: tvms(mod))


IMPORTING = (
    _of_tvm(relax.transform.ConvertToDataflow(min_size=1)),
    _of_words(require_sizes_of_operators),
    _of_facts(with_fixed_sizes),
    _of_module(keep_integers),
    _of_module(fold_constants),
    _of_words(with_indices_in_range),
    _of_module(spread_transposed),
    _of_facts(with_branch_checks),
    _of_module(split_zero_points),
    _of_tvm(relax.transform.DeadCodeElimination()),
)
"""The passes right after an importer, which share its `Imported`."""

PREPARING = (
    _of_module(slice_single_indices),
    _of_module(scale_results, "cuda"),
    _of_module(with_safe_softmax, "cuda"),
    _of_module(with_steps_as_channels, "cpu"),
    _of_context(carry_channels, "cuda"),
    _of_target(with_rows_in_matrices),
    _of_context(limit_open_sizes),
    _of_context(with_precision),
)
"""The passes before the plan of the layers; they share a `Context`, as do all that follow."""

FINDING = (_of_module(gather_shuffles, "cuda"), _of_context(find_layers), _of_context(with_exact_sums))
"""The passes that begin the plan with the layers in NCHW."""

PLANNING = (_of_context(choose_sparse), _of_context(choose_fused, "cuda"), _of_context(plan_layouts))
"""The passes that plan which layers a kernel computes together, and in which layouts."""

CALLING = (
    _of_context(choose_templates),
    _of_context(plan_slices),
    _of_context(plan_concat_slices),
    _of_context(call_kernels),
    _of_module(expand_shuffles),
    _of_context(compile_sparse_kernels),
)
"""The passes that choose a template for each layer and call its kernel."""

REMAINING = (
    _of_context(use_fused, "cuda"),
    _of_context(use_products),
    _of_target(use_tables),
    _of_module(lower_quantization),
    _of_module(simplify_batch_norms),
    _of_module(simplify_powers),
    _of_target(sum_in_float32),
    _of_context(with_index_checks),
    _of_context(lower_recurrences),
)
"""The passes over what the kernels of layers have not taken in."""

BUILDING = (*PREPARING, *FINDING, *PLANNING, *CALLING, *REMAINING)
"""The passes that give a module the kernels of a target."""

COMPILING = (
    _of_module(flatten_concatenations, "cuda"),
    _of_module(permute_slices, "cuda"),
    _of_module(outline_branches, "cpu"),
    _of_target(lower_and_fuse_for_gpu, "cuda"),
    _of_target(lower_and_fuse, "cpu"),
    _of_target(spread_over_gpu, "cuda"),
    _of_target(spread_over_threads, "cpu"),
)
"""The passes that make scheduled functions of a module's operators."""


def run(
    passes: Sequence[Pass],
    mod: tvm.IRModule,
    shared: Any,
    after_pass: Callable[[str, tvm.IRModule], None] = lambda name, mod: None,
) -> tvm.IRModule:
    """Return the module after those passes that are for the device.

    `shared` is the object that all passes of the list get, an `Imported` or a `Context`. `after_pass` gets the name
    of each pass and the module that it returned.
    """
    device = backend_of(shared.target).device_type if isinstance(shared, Context) else None
    for each in passes:
        if each.device in (None, device):
            mod = each.function(mod, shared)
            after_pass(each.name, mod)
    return mod
