"""Sites of convolutions in a network, with the operators around them that their kernels can take in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf, isfinite

import msgspec
import numpy as np
import tvm
from tvm import relax

from tvmconv.compute import with_sizes
from tvmconv.problem import Problem
from tvmconv.problem.dtypes import FLOATS
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.workload import ConvWorkload

from ..graph.constants import constant_value
from ..graph.convolutions import (
    Assumed,
    assumed_sizes,
    describe,
    describe_linear,
    is_convolution,
    is_linear,
    open_sizes,
    redescribed,
)
from ..graph.graph import Block, blocks_of
from ..graph.layers import Convolution
from .epilogue import Tail, padding_before, tail_after
from .half import half_factors, half_tail
from .integers import Factors, integer_factors, integer_tail
from .quantized import quantized_constant


@dataclass(frozen=True)
class Site:
    """A convolution in a module, with the operators around it that its kernel takes in."""

    convolution: Convolution
    workload: ConvWorkload | None
    """The workload of the kernel; None for a convolution that is left to TVM."""
    operands: tuple[relax.Expr, ...]
    """The kernel's operands, in the order of `workload.operands`, but maybe in another shape."""
    output: relax.Var
    """The variable that the kernel computes."""
    linear: bool = False
    """True for a linear layer, with a weight (C, K)."""
    addition: relax.Var | None = None
    """The variable that holds the sum with the residual."""
    sums: relax.Var | None = None
    """The variable that holds the sums of products, before any operator of the epilogue."""
    of_integers: bool = False
    """True for integers in float32, whose sums are to be exact: see `with_exact_sums`."""

    @property
    def described(self) -> ConvWorkload:
        """The workload of a convolution that gets a kernel."""
        assert self.workload is not None
        return self.workload

    @property
    def sizes(self) -> dict[str, tvm.tirx.PrimExpr]:
        """The workload's sizes that are known only when the model runs, by name."""
        return open_sizes(self.operands[0].ty)

    @property
    def shaped(self) -> ConvWorkload:
        """The workload with the model's expressions for sizes that are known only when it runs."""
        return with_sizes(self.described, self.sizes)

    def problem(self, precision: str) -> Problem:
        """Return the problem that the kernel solves with a precision; for integers in float32 it is "strict"."""
        sizes, precision = self.convolution.open_sizes, "strict" if self.of_integers else precision
        return Problem(self.described, precision=precision, open_sizes=sizes, constant_weight=self.is_constant)

    @property
    def is_constant(self) -> bool:
        """True where the weight is a constant, and not computed."""
        return isinstance(self.operands[1], tvm.ir.GenericConst)

    @property
    def weight(self) -> np.ndarray | None:
        """The weight in the workload's shape; None for one that is computed."""
        if self.workload is None or (weight := constant_value(self.operands[1])) is None:
            return None
        return (weight.T if self.linear else weight).reshape(self.workload.w_shape)

    @property
    def vectors(self) -> dict[str, np.ndarray]:
        """The scale and the shift, by name, where the workload has them."""
        named = zip(self.described.operands, self.operands, strict=False)  # the last is the output
        return {name: np.asarray(operand.value.numpy()) for name, operand in named if name in ("scale", "shift")}


Obstacle = Callable[[Site], "str | None"]
"""A function that returns the reason why no kernel takes a site of integers or half precision; None where one does."""


def find_convolutions(mod: tvm.IRModule, obstacle: Obstacle = lambda site: None) -> list[Site]:
    """Return the convolutions and linear layers of "main" in graph order, with what their kernels can take in.

    Convolutions of quantized numbers are in integers, and those of numbers cast from half precision are in half
    precision. Where `obstacle` returns a reason why no kernel takes such a site, it is in the model's floating point.
    """
    sites, assumed = [], assumed_sizes(mod)
    for block in blocks_of(mod):
        additions: set[relax.Var] = set()
        for var, value in block.values.items():
            if is_convolution(value) or is_linear(value):
                found = _site(var, value, block, additions, obstacle, assumed)
                sites += [replace(found, sums=var)] if found is not None else []
    return sites


def _site(
    var: relax.Var, call: relax.Call, block: Block, additions: set[relax.Var], obstacle: Obstacle, assumed: Assumed
) -> Site | None:
    """Return the site of a call; None for a product that no workload describes.

    `additions` holds the additions that kernels have taken in, and gets this one's.
    """
    linear, tail = is_linear(call), tail_after(var, block, additions)
    data, padding = padding_before(call.args[0], block)
    factors = integer_factors(call, data, 1 if linear else 0, block)
    reason = factors if isinstance(factors, str) else None
    if isinstance(factors, Factors):
        try:
            site = _integer_site(var, call, factors, padding, tail, block, assumed)
            reason = obstacle(site) if site.workload is not None else site.convolution.obstacle
        except InvalidArgumentError as error:  # such as more terms than sums in int32 have room for
            reason = str(error)
        if reason is None:
            return _with_addition_taken(site, additions)
    in_halves = _half_site(var, call, data, padding, tail, block, assumed)
    if in_halves is not None and obstacle(in_halves) is None:
        return _with_addition_taken(in_halves, additions)
    weight = constant_value(call.args[1])
    if weight is None and (integers := quantized_constant(call.args[1], block.values.get)) is not None:
        weight = integers.numbers
    if linear and (weight is None or str(call.args[0].ty.dtype) not in FLOATS):
        return None
    convolution = _described(var, call, assumed)
    convolution = replace(convolution, in_float=reason)
    if convolution.workload is None:
        return Site(convolution, None, (), var)
    workload = _with_surroundings(convolution.workload, padding, tail)
    operands = data, call.args[1] if weight is None else relax.const(weight)
    convolution = redescribed(convolution, workload, call.args[0].ty)
    site = Site(convolution, workload, (*operands, *_vectors(tail)), tail.output, linear, tail.addition)
    return _with_addition_taken(site, additions)


def _described(var: relax.Var, call: relax.Call, assumed: Assumed, dtype: str | None = None) -> Convolution:
    """Return the description of a convolution or of a linear layer, of a type where that is not the one in the call."""
    name = str(var.name)
    return describe_linear(name, call, assumed, dtype) if is_linear(call) else describe(name, call, dtype)


def _integer_site(
    var: relax.Var,
    call: relax.Call,
    factors: Factors,
    padding: tuple[int, int, int, int],
    tail: Tail,
    block: Block,
    assumed: Assumed,
) -> Site:
    """Return the site of a convolution of integers; without a workload where none can describe it."""
    linear, dtype = is_linear(call), str(factors.x.ty.dtype)
    convolution = _described(var, call, assumed, dtype)
    if convolution.workload is None:
        return Site(convolution, None, (), var)
    operands = factors.x, relax.const(factors.weight)
    workload = msgspec.structs.replace(convolution.workload, x_zero_point=factors.zero_point)
    if factors.scale is None:
        tail = Tail(var, None, None, None, None, -inf, inf, None)
    else:
        behind = integer_tail(tail, factors.scale, block)
        tail = behind.tail
        workload = msgspec.structs.replace(
            workload,
            out_dtype=behind.dtype,
            epilogue=Epilogue(zero_point=behind.zero_point, factor=behind.factor),
        )
    workload = _with_surroundings(workload, padding, tail)
    convolution = redescribed(convolution, workload, call.args[0].ty)
    return Site(convolution, workload, (*operands, *_vectors(tail)), tail.output, linear, tail.addition)


def _half_site(
    var: relax.Var,
    call: relax.Call,
    data: relax.Expr,
    padding: tuple[int, int, int, int],
    tail: Tail,
    block: Block,
    assumed: Assumed,
) -> Site | None:
    """Return the site of a convolution of half precision; None for any other."""
    if (factors := half_factors(call, data, block)) is None:
        return None
    x, weight = factors
    linear, dtype = is_linear(call), str(x.ty.dtype)
    convolution = _described(var, call, assumed, dtype)
    if convolution.workload is None:
        return None
    tail = half_tail(tail, dtype, block)
    workload = msgspec.structs.replace(convolution.workload, out_dtype=str(tail.output.ty.dtype))
    workload = _with_surroundings(workload, padding, tail)
    convolution = redescribed(convolution, workload, call.args[0].ty)
    operands = x, relax.const(weight), *_vectors(tail)
    return Site(convolution, workload, operands, tail.output, linear, tail.addition)


def _with_addition_taken(site: Site, additions: set[relax.Var]) -> Site:
    """Return the site, whose addition no other kernel takes in from now on."""
    if site.addition is not None:
        additions.add(site.addition)
    return site


def _vectors(tail: Tail) -> list[relax.Expr]:
    """Return the operands of a tail: scale, shift and residual, as far as it has them."""
    vectors = [relax.const(vector.astype(np.float32)) for vector in (tail.scale, tail.shift) if vector is not None]
    return vectors + ([tail.residual] if tail.residual is not None else [])


def _with_surroundings(workload: ConvWorkload, padding: tuple[int, int, int, int], tail: Tail) -> ConvWorkload:
    top, left, bottom, right = padding
    epilogue = Epilogue(
        scale=tail.scale is not None,
        shift=tail.shift is not None,
        residual=tail.residual is not None,
        low=tail.low if isfinite(tail.low) else None,
        high=tail.high if isfinite(tail.high) else None,
        function=msgspec.UNSET if tail.function is None else tail.function,
        zero_point=workload.epilogue.zero_point,
        factor=workload.epilogue.factor,
    )
    return msgspec.structs.replace(
        workload,
        height=workload.height - top - bottom,
        width=workload.width - left - right,
        padding=tuple(a + b for a, b in zip(workload.padding, padding, strict=True)),
        epilogue=epilogue,
    )
