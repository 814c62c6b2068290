"""A sparse convolution compiled for one shape of input."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import tvm
from tvm import tirx
from tvm.runtime import Executable, Module

from tvmconv.dispatch import Selection, select
from tvmconv.lowering import KERNEL_NAME, build_kernel, fold, machine_code
from tvmconv.lowering.workspace import NO_WORKSPACE
from tvmconv.problem import Problem
from tvmconv.problem.constants import COMPILED_IN, Constants, sparsity_of
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import resolve_target

from ..operator import Operator
from .report import SparseReport, make_report


class SparseOperator(Operator):
    """A convolution whose weight and shift are compiled in; `SparseConv2d.operator` makes it, `tvmconv.load` reads one.

    Call it with x (N, C, H, W), and with a residual (N, K, Ho, Wo) where the workload has one. The rest, `source`,
    `resources`, `save`, is as for `Operator`.

    >>> import numpy as np
    >>> import tvmconv
    >>> weight = np.zeros((8, 4, 3, 3), "float32")
    >>> weight[:, 0, 1, 1] = 2
    >>> operator = tvmconv.sparse_conv2d(weight).operator((1, 4, 8, 8))
    >>> operator(np.ones((1, 4, 8, 8), "float32")).mean()
    np.float32(2.0)
    >>> f"{operator.report.sparsity:.1%} of the weight is zero"
    '97.2% of the weight is zero'
    """

    KIND = "sparse"
    COMPILED_IN = COMPILED_IN

    def __init__(
        self,
        workload: ConvWorkload,
        target: tvm.target.Target,
        selection: Selection,
        module: Executable | Module,
        constants: Constants,
        report: SparseReport,
        open_sizes: tuple[str, ...] = (),
    ) -> None:
        problem = Problem(workload, sparsity_of(constants["w"]), open_sizes=open_sizes)
        super().__init__(problem, target, selection, module, NO_WORKSPACE)
        self.constants = constants
        """The weight w in the shape `workload.w_shape`, and the shift (K,), if any."""
        self.report = report
        """The counts of the weight's multiply-adds and of its code."""
        self._module = module

    def __call__(self, x: Any, residual: Any = None, *, out: Any = None) -> Any:  # type: ignore[override]
        """Convolve x (N, C, H, W); return an array of the kind of x on the device of x.

        `out` is as for `Operator`. Raises `InvalidArgumentError` for an array that is not what the workload says,
        `NoDeviceError` where the target's device is missing.
        """
        arrays = {"x": x} if residual is None else {"x": x, "residual": residual}
        return self._calls(self.launch, (), arrays, out)

    def takes(self, workload: ConvWorkload) -> bool:
        """Return True: these kernels limit only the number of elements, which every workload keeps."""
        return True

    def _lowered(self) -> tirx.PrimFunc:
        func = fold(self.problem, self.selection, self.target, self.constants).func
        return func.with_attr("global_symbol", KERNEL_NAME)

    def _compiled(self) -> Executable:
        if isinstance(self._module, Executable):
            return self._module
        return build_kernel(self.problem, self.selection, self.target, self.constants).executable

    def _details(self, executable: Executable) -> dict[str, Any]:
        return {
            **super()._details(executable),
            "report": msgspec.to_builtins(self.report),
            "constants": _packed(self.constants),
        }

    @classmethod
    def _from_details(cls, module: Module, target: str, details: dict[str, Any]) -> SparseOperator:
        workload, selection = cls._saved_choice(details)
        constants = _unpacked(msgspec.convert(details["constants"], bytes))
        report = msgspec.convert(details["report"], SparseReport)
        open_sizes = tuple(details.get("open_sizes", ()))  # older files do not have them
        return cls(workload, resolve_target(target), selection, module, constants, report, open_sizes)


def compile_operator(
    workload: ConvWorkload,
    constants: Constants,
    target: tvm.target.Target,
    config: Any = None,
    open_sizes: tuple[str, ...] = (),
) -> SparseOperator:
    """Compile the operator of a workload for its constants; it refuses the constants that `build_kernel` refuses."""
    problem = Problem(workload, sparsity_of(constants["w"]), open_sizes=open_sizes)
    selection = select(problem, target, config)
    executable, _, folded = build_kernel(problem, selection, target, constants)
    assert folded is not None
    report = make_report(constants["w"], folded.pixels, folded.blocks, machine_code(executable, target))
    return SparseOperator(workload, target, selection, executable, constants, report, open_sizes)


def _packed(arrays: Constants) -> bytes:
    file = BytesIO()
    np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
    return file.getvalue()


def _unpacked(data: bytes) -> Constants:
    with np.load(BytesIO(data)) as archive:
        return dict(archive)
