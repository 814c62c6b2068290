"""Sites of convolutions in a network, with the operators around them that their kernels can take in."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import msgspec
import numpy as np
import tvm
from tvm import relax

from ..compute import with_sizes
from ..epilogue import Epilogue
from ..problem import Problem
from ..workload import ConvWorkload
from .constants import constant_value
from .convolutions import describe, describe_linear, is_convolution, is_linear, open_sizes, redescribed
from .epilogue import Tail, follow, padding_before
from .graph import Block, blocks_of
from .layers import Convolution


@dataclass(frozen=True)
class Site:
    """A place in a module where a convolution stands."""

    convolution: Convolution
    workload: ConvWorkload | None
    """The workload of the kernel; None for a convolution that is left to TVM."""
    operands: tuple[relax.Expr, ...]
    """The kernel's operands, in the order of `workload.operands`, but maybe in another shape."""
    output: relax.Var
    """The variable that the kernel computes."""
    linear: bool = False
    """True for a linear layer, with a weight (C, K)."""

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
        """The workload with the model's expressions in the place of sizes that are known only when it runs."""
        return with_sizes(self.described, self.sizes)

    def problem(self, precision: str) -> Problem:
        """Return the problem that the kernel solves with a precision."""
        return Problem(self.described, precision=precision, open_sizes=self.convolution.open_sizes)

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


def find_convolutions(mod: tvm.IRModule) -> list[Site]:
    """Return the convolutions and linear layers of "main" in graph order, with what their kernels can take in."""
    sites = []
    for block in blocks_of(mod):
        taken: set[relax.Var] = set()
        for var, value in block.values.items():
            if is_convolution(value):
                sites.append(_site(var, value, describe(str(var.name), value), block, taken))
            elif is_linear(value):
                sites.append(_site(var, value, describe_linear(str(var.name), value), block, taken))
    return sites


def _site(var: relax.Var, call: relax.Call, convolution: Convolution, block: Block, taken: set[relax.Var]) -> Site:
    """Return the site of a call; `taken` holds the additions that kernels have taken in, and gets this one's."""
    if convolution.workload is None:
        return Site(convolution, None, (), var)
    data, padding = padding_before(call.args[0], block)
    tail = follow(var, block, taken)
    if tail.addition is not None:
        taken.add(tail.addition)
    workload = _with_surroundings(convolution.workload, padding, tail)
    operands = [data, call.args[1]]
    operands += [relax.const(vector.astype(np.float32)) for vector in (tail.scale, tail.shift) if vector is not None]
    operands += [tail.residual] if tail.residual is not None else []
    convolution = redescribed(convolution, workload, call.args[0].ty)
    return Site(convolution, workload, tuple(operands), tail.output, is_linear(call))


def _with_surroundings(workload: ConvWorkload, padding: tuple[int, int, int, int], tail: Tail) -> ConvWorkload:
    top, left, bottom, right = padding
    epilogue = Epilogue(
        scale=tail.scale is not None,
        shift=tail.shift is not None,
        residual=tail.residual is not None,
        low=tail.low if isfinite(tail.low) else None,
        high=tail.high if isfinite(tail.high) else None,
        function=msgspec.UNSET if tail.function is None else tail.function,
    )
    return msgspec.structs.replace(
        workload,
        height=workload.height - top - bottom,
        width=workload.width - left - right,
        padding=tuple(a + b for a, b in zip(workload.padding, padding, strict=True)),
        epilogue=epilogue,
    )
