"""The pass that brings a network in float32 to half precision, as frameworks' autocast does."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import partial

import msgspec
import numpy as np
import tvm
from tvm import relax
from tvm.ir import Constant

from tvmconv.dispatch import algorithms_for, least_cycles
from tvmconv.problem.dtypes import one_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT, HALVES, NETWORK_WORDS
from tvmconv.targets import multiplies

from ..graph.constants import constant_value
from ..graph.graph import Block, blocks_of, call_of, calls, free_variables, rebind
from ..sites import Site
from ..sites.batch_norm import simplify_batch_norms
from ..sites.epilogue import padding_before
from ..sites.half import in_half
from ..sites.quantized import MOVING
from .context import Context
from .convolutions.layers import sites_for
from .convolutions.layouts import BY_ELEMENT, inner_layout, with_layout
from .early.safe_softmax import SOFTMAX
from .fused import fused_layers
from .products import products_of_halves
from .quantized.integers import CHOOSING

WIDE = "float32"
"""The type of networks that the pass takes, and that everything but products and storage stays in."""

KEEPING = (*MOVING, *CHOOSING, "concat", "split")
"""Operators of Relax that only move or choose elements, so that results of half-precision operands are exact."""

AVERAGING = ("nn.adaptive_avg_pool2d", "nn.avg_pool1d", "nn.avg_pool2d", "nn.avg_pool3d")
"""Averages of Relax: computed in float32, with results stored in half precision as those of activations are."""

NORMALIZING = ("nn.group_norm", "nn.instance_norm", "nn.layer_norm", "nn.rms_norm")
"""Normalizations of Relax: computed in float32, with results stored in half precision as those of activations are."""

MADE_OF_HALVES = (*BY_ELEMENT, *KEEPING, *AVERAGING, *NORMALIZING, *SOFTMAX)
"""Operators whose results may be stored in half precision if their operands are results of half-precision layers, or of
these operators."""

LEADING = (*MADE_OF_HALVES, "mean", "nn.pad")
"""Operators that may stand between a tensor and the half-precision layer for which it is stored in half precision."""


def with_precision(mod: tvm.IRModule, context: Context) -> tvm.IRModule:
    """Return the module for the precision of the network; the context gets that of its kernels, one of `WORDS`.

    Raises `InvalidArgumentError` for half precision that the target has no instructions for: it would be slow.
    """
    target, precision = context.target, context.precision
    if precision not in HALVES:
        return mod
    if not multiplies(target, precision):
        others = [word for word in NETWORK_WORDS if word not in HALVES or multiplies(target, word)]
        device = next((str(target.attrs[name]) for name in ("arch", "mcpu") if name in target.attrs), target.kind.name)
        why = f"{device} has no instructions that multiply {precision}, and would be slow"
        raise InvalidArgumentError("precision", precision, f"{one_of(others)}: {why}")
    context.precision = DEFAULT
    return _to_half(mod, target, precision)


def _to_half(mod: tvm.IRModule, target: tvm.target.Target, dtype: str) -> tvm.IRModule:
    """Return the module with the factors of convolutions and linear layers in half precision, each where it is faster.

    On a GPU the factors of products of two computed tensors are in half precision, too. Weights are rounded here and
    now. A tensor is stored in half precision if it is computed from results of such layers and products by activations,
    additions, normalizations, softmax, pooling, concatenations and moves alone, and such a layer or product reads it,
    maybe through operators of `LEADING`. Sums that normalizations alone read stay in float32, and so do tensors that
    softmax alone reads. Operators that compute read a stored tensor as float32. TVM's own pass, `ToMixedPrecision`,
    supports no other type than float16, and stores the tensors between two operators of an epilogue.

    Before: `y = R.nn.conv2d(x, w)`, `z = R.nn.relu(y)`, `output = R.nn.conv2d(z, v)`.
    After: `h = R.astype(x, "bfloat16")`, `y = R.nn.conv2d(R.astype(h, "float32"), w)` with w rounded,
    `z = R.astype(R.nn.relu(y), "bfloat16")`, `output = R.nn.conv2d(R.astype(z, "float32"), v)` with v rounded.
    """
    mod = simplify_batch_norms(mod)
    every = sites_for(mod, target)
    fused = {var for found in fused_layers(mod, every, target, DEFAULT) for var in found.layers}
    sites = [site for site in every if site.output in fused or _is_faster(site, target, dtype)]
    products = products_of_halves(mod, target, dtype) - {site.sums for site in every}
    values: dict[relax.Var, relax.Expr] = {}
    for block in blocks_of(mod):
        values |= _StorageChoice(block, sites, products, dtype).values()
    return rebind(mod, values)


ABOUT_AS_MUCH = 1.1
"""The most time in half precision, as a multiple of the time in float32, at which half precision is chosen: its weights
and tensors are smaller."""


def _is_faster(site: Site, target: tvm.target.Target, dtype: str) -> bool:
    """Return whether a site in float32 should take less time in half precision, by the templates' estimates.

    Up to `ABOUT_AS_MUCH` times the time is enough, as for layers of few weights, whose time is that of starting a
    kernel.
    """
    if site.workload is None or site.workload.dtype != WIDE:
        return False
    wide = site.described
    least = []
    for each in (WIDE, dtype):
        workload = msgspec.structs.replace(wide, dtype=each)
        laid_out = dict.fromkeys((workload, with_layout(workload, inner_layout(target))))
        problems = [msgspec.structs.replace(site.problem(DEFAULT), workload=one) for one in laid_out]
        cycles = [least_cycles(problem, target) for problem in problems if algorithms_for(problem, target)]
        if not cycles:
            return False
        least.append(min(cycles))
    in_float, in_halves = least
    return in_halves <= ABOUT_AS_MUCH * in_float


class _StorageChoice:
    """The tensors of a dataflow block, and the choice of those that are stored in half precision."""

    def __init__(self, block: Block, sites: Sequence[Site], products: Set[relax.Var], dtype: str) -> None:
        self._block, self._products, self._dtype = block, products, dtype
        self._sites = {
            site.sums: site
            for site in sites
            if site.sums in block.values and constant_value(block.values[site.sums].args[1]) is not None
        }
        self._output_of: dict[relax.Var, relax.Var] = {}
        """The output of a site, by each variable from its sums up to and including the output."""
        for site in self._sites.values():
            for var in self._up_to_output(site):
                self._output_of[var] = site.output
        # `functools.cache` of methods would keep this, with all weights, until Python collects cycles.
        self._stored_cache: dict[relax.Var, bool] = {}
        self._made_cache: dict[relax.Var, bool] = {}
        self._leading_cache: dict[relax.Var, bool] = {}
        self._scores_cache: dict[relax.Var, bool] = {}

    def is_stored(self, var: relax.Var) -> bool:
        """Return whether a variable is in half precision from its computation on."""
        return _cached(self._stored_cache, self._find_stored, var)

    def _is_made_of_halves(self, var: relax.Var) -> bool:
        """Return whether a variable is a result of a site or product, or made of these by `MADE_OF_HALVES`."""
        return _cached(self._made_cache, self._find_made_of_halves, var)

    def _leads_to_site(self, var: relax.Var) -> bool:
        """Return whether a site or a product reads a variable, maybe through operators of `LEADING`."""
        return _cached(self._leading_cache, self._find_leads_to_site, var)

    def values(self) -> dict[relax.Var, relax.Expr]:
        """Return the new values of the block's variables."""
        values = {}
        for var, value in self._block.values.items():
            if not isinstance(value, relax.Call) and not isinstance(value, relax.TupleGetItem):
                continue
            stored = self.is_stored(var)
            if stored and _keeps(value):
                values[var] = self._with_operands(value, self._in_half)
            elif stored or self._is_product(var) or any(map(self.is_stored, free_variables(value))):
                computed = self._with_operands(value, partial(self._in_float32, var))
                values[var] = relax.op.astype(computed, self._dtype) if stored else computed
        return values

    def _up_to_output(self, site: Site) -> set[relax.Var]:
        """Return the variables from the sums of a site up to its output, with those that are computed on the way."""
        found = {site.sums}
        for var, value in self._block.values.items():
            if not found.isdisjoint(free_variables(value)):
                found.add(var)
            if var.same_as(site.output):
                break
        return found

    def _find_stored(self, var: relax.Var) -> bool:
        value = self._block.values.get(var)
        if value is None or not self._block.is_inner(var) or not _is_wide(var):
            return False
        if isinstance(value, relax.TupleGetItem):
            return isinstance(value.tuple_value, relax.Var) and self.is_stored(value.tuple_value)
        readers = self._block.readers(var)
        if not isinstance(value, relax.Call) or not readers or not all(map(self._can_read, readers)):
            return False
        if all(self._rounds(var, reader) for reader in readers):
            return True
        if not self._is_made_of_halves(var) or not self._leads_to_site(var) or self._is_scores(var):
            return False
        if var in self._output_of:
            return bool(self._output_of[var].same_as(var))
        return var in self._products or _keeps(value) or not all(self._is_fused(var, reader) for reader in readers)

    def _is_scores(self, var: relax.Var) -> bool:
        """Return whether softmax alone reads a variable, maybe through moves and element-by-element operators.

        Scores of attention stay in float32: their scale comes after the product, and float16 ends at 65504. Rounding
        them cost 0.7 dB of signal to noise in a ViT-S, too.
        """
        return _cached(self._scores_cache, self._find_scores, var)

    def _find_scores(self, var: relax.Var) -> bool:
        readers = {reader: self._block.values[reader] for reader in self._block.readers(var)}
        return bool(readers) and all(
            calls(value, *SOFTMAX) or (calls(value, *BY_ELEMENT, *MOVING) and self._is_scores(reader))
            for reader, value in readers.items()
        )

    def _is_product(self, var: relax.Var) -> bool:
        """Return whether a variable holds the sums of a site, or a product, with factors in half precision."""
        return var in self._sites or var in self._products

    def _is_fused(self, var: relax.Var, reader: relax.Var) -> bool:
        """Return whether TVM fuses a reader, by element or a softmax, with a variable, which stays in registers."""
        softmax = calls(self._block.values[var], *BY_ELEMENT) and calls(self._block.values[reader], *SOFTMAX)
        by_element = calls(self._block.values[reader], *BY_ELEMENT)
        return (by_element or softmax) and reader not in self._output_of and self._is_made_of_halves(reader)

    def _can_read(self, reader: relax.Var) -> bool:
        """Return whether the operands of a reader can be replaced."""
        value = self._block.values[reader]
        return isinstance(value, relax.Call) or (
            isinstance(value, relax.TupleGetItem) and isinstance(value.tuple_value, relax.Var)
        )

    def _rounds(self, var: relax.Var, reader: relax.Var) -> bool:
        """Return whether a reader takes a variable as a factor of its products; a layer may read it through padding."""
        if reader in self._products:
            return True
        if (pads := self._block.only_reader(reader)) is not None and calls(self._block.values[reader], "nn.pad"):
            reader = pads
        site = self._sites.get(reader)
        return site is not None and padding_before(self._block.values[reader].args[0], self._block)[0].same_as(var)

    def _find_made_of_halves(self, var: relax.Var) -> bool:
        if self._is_product(var):
            return True
        value = self._block.values.get(var)
        if isinstance(value, relax.TupleGetItem):
            return isinstance(value.tuple_value, relax.Var) and self._is_made_of_halves(value.tuple_value)
        if value is None or not calls(value, *MADE_OF_HALVES) or not _is_wide(var):
            return False
        operands = free_variables(*(each for each in value.args if isinstance(each, (relax.Var, relax.Tuple))))
        return bool(operands) and all(map(self._is_made_of_halves, operands))

    def _find_leads_to_site(self, var: relax.Var) -> bool:
        for reader in self._block.readers(var):
            value = self._block.values[reader]
            if self._rounds(var, reader):
                return True
            if calls(value, *NORMALIZING) and self._is_sum(var):
                continue
            if (isinstance(value, relax.TupleGetItem) or calls(value, *LEADING)) and self._leads_to_site(reader):
                return True
        return False

    def _is_sum(self, var: relax.Var) -> bool:
        """Return whether a variable is a sum of tensors (a constant needs several axes) none of which a layer reads.

        Where normalizations alone read it, such a sum stays in float32: in a transformer each block adds to it, and
        rounding it again and again cost 3 dB of signal to noise in a ViT-S.
        """
        value = call_of(self._block.values.get(self._before_moves(var)), "add")
        if value is None:
            return False
        constants = [constant_value(each) for each in value.args]
        are_tensors = all(each is None or sum(size > 1 for size in each.shape) > 1 for each in constants)
        return are_tensors and not any(map(self._is_rounded, free_variables(value)))

    def _is_rounded(self, var: relax.Var) -> bool:
        """Return whether a layer reads the elements of a variable as a factor, maybe before or after other moves."""
        waiting = [self._before_moves(var)]
        while waiting:
            each = waiting.pop()
            readers = self._block.readers(each)
            if any(self._rounds(each, reader) for reader in readers):
                return True
            waiting += [reader for reader in readers if calls(self._block.values[reader], *MOVING)]
        return False

    def _before_moves(self, var: relax.Var) -> relax.Var:
        """Return the variable from which moves alone (reshapes, permutations) make a variable."""
        move = call_of(self._block.values.get(var), *MOVING)
        return self._before_moves(move.args[0]) if move is not None and isinstance(move.args[0], relax.Var) else var

    def _with_operands(
        self, value: relax.Call | relax.TupleGetItem, changed: Callable[[relax.Var | Constant], relax.Expr]
    ) -> relax.Expr:
        """Return a value with `changed` applied to its operands, and with the weight of a site rounded."""
        if isinstance(value, relax.TupleGetItem):
            return value

        def replaced(operand: relax.Expr) -> relax.Expr:
            return changed(operand) if isinstance(operand, (relax.Var, Constant)) else operand

        operands = [
            relax.Tuple([replaced(field) for field in each.fields]) if isinstance(each, relax.Tuple) else replaced(each)
            for each in value.args
        ]
        if any(value.same_as(self._block.values[sums]) for sums in self._sites):
            weight = constant_value(value.args[1])
            assert weight is not None
            operands[1] = relax.const(in_half(weight, self._dtype).astype(np.float32))
        return relax.Call(value.op, operands, value.attrs, value.ty_args)

    def _in_half(self, operand: relax.Var | Constant) -> relax.Expr:
        if not _is_wide(operand) or (isinstance(operand, relax.Var) and self.is_stored(operand)):
            return operand
        if (numbers := constant_value(operand)) is not None:
            return relax.const(in_half(numbers, self._dtype))
        return relax.op.astype(operand, self._dtype)

    def _in_float32(self, reader: relax.Var, operand: relax.Var | Constant) -> relax.Expr:
        """Return an operand in float32 for a reader, rounded to half precision first if the reader multiplies it."""
        if isinstance(operand, Constant):
            return relax.op.astype(self._in_half(operand), WIDE) if reader in self._products else operand
        if self.is_stored(operand):
            return relax.op.astype(operand, WIDE)
        return relax.op.astype(self._in_half(operand), WIDE) if self._rounds(operand, reader) else operand


def _cached(cache: dict[relax.Var, bool], find: Callable[[relax.Var], bool], var: relax.Var) -> bool:
    if var not in cache:
        cache[var] = find(var)
    return cache[var]


def _keeps(value: relax.Expr) -> bool:
    return isinstance(value, relax.TupleGetItem) or calls(value, *KEEPING)


def _is_wide(expr: relax.Expr) -> bool:
    """Return whether a variable or a constant is a tensor in float32, or a tuple of tensors in float32."""
    types = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return all(isinstance(each, relax.TensorType) and str(each.dtype) == WIDE for each in types)
