"""tvmconv itself as a contender, as a user gets it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from tvmconv.dispatch import algorithms_for
from tvmconv.problem import Problem
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload

from .peer import Call, Operands, Peer

if TYPE_CHECKING:
    import tvm


class Tvmconv(Peer):
    """tvmconv with the configuration of a log that it ships, or with the default."""

    name = "tvmconv"
    takes_integers = True
    algorithm = "auto"
    config: Any = None
    """A configuration to take, whatever tvmconv itself would choose; None leaves the choice to it."""

    def __init__(self, precision: str = DEFAULT) -> None:
        self.precision = precision

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        return None

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from tvmconv.runtime import operators

        operator = operators.compile(workload, target, self.config, self.algorithm, self.precision)
        return [partial(operator, **operands) for operands in sets]

    def unit(self, workload: ConvWorkload) -> float:
        return 0.0


class Configured(Tvmconv):
    """tvmconv with one configuration."""

    def __init__(self, config: Any, algorithm: str = "auto") -> None:
        super().__init__()
        self.config = config
        self.algorithm = algorithm
        self.name = str(config)


class Algorithm(Tvmconv):
    """tvmconv with one of its algorithms for a convolution, to see them side by side."""

    def __init__(self, algorithm: str, precision: str = DEFAULT) -> None:
        super().__init__(precision)
        self.algorithm = algorithm
        self.name = f"tvmconv-{algorithm}"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        known = algorithms_for(Problem(workload, precision=self.precision), target)
        if self.algorithm not in known:
            return f"by {' or '.join(known)} on {target.kind.name}"
        return "the only algorithm for it" if len(known) == 1 else None


class ChannelsLast(Tvmconv):
    """tvmconv for operands whose channels are last in memory, as torch's channels_last has them."""

    name = "tvmconv-channels-last"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        known = algorithms_for(Problem(workload.in_nhwc(), precision=self.precision), target)
        return None if known else "for tensor cores, and depthwise convolutions on a GPU"

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        from tvmconv.runtime import operators

        operator = operators.compile(workload.in_nhwc(), target, None, "auto", self.precision)

        def call(operands: Operands) -> Any:
            return operator(**operands).permute(0, 3, 1, 2)

        moved = ("x", "residual") if workload.is_depthwise else ("x", "w", "residual")
        last = [
            {name: each.permute(0, 2, 3, 1).contiguous() if name in moved else each for name, each in operands.items()}
            for operands in sets
        ]
        return [partial(call, operands) for operands in last]


class Plain(Tvmconv):
    """tvmconv for the convolution without its epilogue, which shows the cost of fusing the epilogue."""

    name = "tvmconv-plain"

    def obstacle(self, workload: ConvWorkload, target: tvm.target.Target) -> str | None:
        if workload.epilogue == Epilogue():
            return "the convolution has no epilogue to leave out"
        return super().obstacle(workload, target)

    def prepare(self, workload: ConvWorkload, target: tvm.target.Target, sets: Sequence[Operands]) -> list[Call]:
        plain = [{name: operands[name] for name in ("x", "w")} for operands in sets]
        return super().prepare(self.computes(workload), target, plain)

    def computes(self, workload: ConvWorkload) -> ConvWorkload:
        return workload.without_epilogue()
