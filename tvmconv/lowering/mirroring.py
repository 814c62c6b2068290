"""Functions of convolutions that take the taps of each filter in the other order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx
from tvm.ir.expr import TensorLoad, TensorRegion

from tvmconv.problem import Problem


def with_mirrored_taps(func: tirx.PrimFunc, problem: Problem) -> tirx.PrimFunc:
    """Return the function of a mirrored problem, from that of the convolution, which reads its weight elsewhere.

    Loops, staging and vectors of the schedule stay: lanes along a filter are then read one by one, backwards.

    Before: `taps[t] = w[c, 0, t // 3, t % 3]`. After: `taps[t] = w[c, 0, 2 - t // 3, 2 - t % 3]`.
    """
    if not problem.mirrored:
        return func
    weight = func.params[list(problem.workload.operands).index("w")]
    rows, columns = problem.workload.kernel

    def from_end(size: int, index: Any) -> Any:
        if isinstance(index, tvm.ir.Range):
            return tvm.ir.Range.from_min_extent(size - index.extent - index.min, index.extent)
        return size - 1 - index

    def place(indices: Sequence[Any]) -> list[Any]:
        *filters, r, s = indices
        return [*filters, from_end(rows, r), from_end(columns, s)]

    def loaded(load: TensorLoad) -> tirx.PrimExpr:
        return weight[tuple(place(load.indices))] if load.source.same_as(weight) else load

    def covered(region: TensorRegion) -> TensorRegion:
        return TensorRegion(weight, place(region.region), region.ty) if region.source.same_as(weight) else region

    return func.with_body(tvm_ffi.structural_map(func.body, [(TensorLoad, loaded), (TensorRegion, covered)]))
