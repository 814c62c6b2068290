"""tvmconv itself as a contender, as a user gets it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from tvmconv.dispatch import algorithms_for
from tvmconv.problem import Problem
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Function, Operands

if TYPE_CHECKING:
    import tvm

    from tvmconv.runtime.sparse.operator import SparseOperator


@dataclass(eq=False)
class Tvmconv(Function):
    """tvmconv with the configuration of a log that it ships, or with the default."""

    precision: str = DEFAULT
    name: str = "tvmconv"
    algorithm: str = "auto"
    config: Any = None
    """A configuration to take, whatever tvmconv itself would choose; None leaves the choice to it."""

    takes_integers: ClassVar[bool] = True

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        from tvmconv.runtime import operators

        return operators.compile(workload, target, self.config, self.algorithm, self.precision)

    def unit(self, workload: ConvWorkload) -> float:
        return 0.0


class Algorithm(Tvmconv):
    """tvmconv with one of its algorithms for a convolution, to see them side by side."""

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        known = algorithms_for(Problem(workload, precision=self.precision), target)
        if self.algorithm not in known:
            return f"{self.algorithm} does not compute it on {target.kind.name}: {' or '.join(known)} does"
        return "the only algorithm for it" if len(known) == 1 else None


class ChannelsLast(Tvmconv):
    """tvmconv for operands whose channels are last in memory, as torch's channels_last has them."""

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        known = algorithms_for(Problem(workload.in_nhwc(), precision=self.precision), target)
        return None if known else "for tensor cores, and depthwise convolutions on a GPU"

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        operator = super().forward(workload.in_nhwc(), target)

        def call(**operands: Any) -> Any:
            return operator(**operands).permute(0, 3, 1, 2)

        return call

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        moved = ("x", "residual") if workload.is_depthwise else ("x", "w", "residual")
        return {
            name: each.permute(0, 2, 3, 1).contiguous() if name in moved else each for name, each in operands.items()
        }


class Plain(Tvmconv):
    """tvmconv for the convolution without its epilogue, which shows the cost of the fused epilogue."""

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return "the convolution has no epilogue to leave out" if workload.epilogue == Epilogue() else None

    def forward(self, workload: ConvWorkload, target: tvm.target.Target) -> Callable[..., Any]:
        return super().forward(self.computes(workload), target)

    def converted(self, workload: ConvWorkload, operands: Operands) -> Operands:
        return {name: operands[name] for name in ("x", "w")}

    def computes(self, workload: ConvWorkload) -> ConvWorkload:
        return workload.without_epilogue()


class Sparse(Tvmconv):
    """tvmconv with the weight compiled in; it replaces tvmconv's dense kernel."""

    operator: SparseOperator
    """The operator that was prepared last."""

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from tvmconv.runtime.sparse.convolution import sparse_conv2d

        w = sets[0]["w"].reshape(workload.out_channels, -1, *workload.kernel)
        made = sparse_conv2d(
            w,
            workload.stride,
            workload.padding,
            workload.dilation,
            workload.groups,
            sets[0].get("scale"),
            sets[0].get("shift"),
            workload.epilogue.residual,
            (workload.epilogue.row.name, *workload.epilogue.parameters),
            target=target,
        )
        self.operator = made.operator(workload.x_shape, workload.dtype)
        return [partial(self.operator, operands["x"], operands.get("residual")) for operands in sets]
