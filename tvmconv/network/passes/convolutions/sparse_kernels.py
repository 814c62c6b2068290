"""The choice of convolutions in a network that get their weights compiled in, and the kernels for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from hashlib import sha256
from math import prod

import msgspec
import numpy as np
import tvm

from tvmconv.dispatch import Selection, algorithms_for, at_assumed_sizes, least_cycles, select, sparse_template, tuned
from tvmconv.problem import Problem
from tvmconv.problem.constants import Constants, is_finite, sparsity_of
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import backend_of

from ...graph.constants import Array
from ..context import SparseChoice
from .layouts import inner_layout, with_layout

THRESHOLD = 0.7
"""The share of zeros below which "auto" takes no sparse kernel without records: `bench suite --sparsity` has times."""

MAX_NONZEROS = 32768
"""The largest number of nonzeros in a weight that "auto" compiles in.

Compilers take minutes over more, and no instruction cache holds the code.
"""


class SparseKernels:
    """The choice of the sparse kernels of one network; equal constants of equal workloads share one."""

    def __init__(
        self, target: tvm.target.Target, mode: str, workloads: Sequence[ConvWorkload], precision: str = DEFAULT
    ) -> None:
        """Take the workloads of all layers of the network, and the precision of its dense kernels."""
        self._target = target
        self._by_batch = backend_of(target).kernels_by_batch
        self._mode = mode
        self._precision = precision
        self._weight_bytes = sum(workload.itemsize * prod(workload.w_shape) for workload in workloads)
        # Many layers of a network are equal, and estimates take a while.
        self._select = cache(self._selection)
        self._is_faster = cache(self._faster)

    def choose(
        self,
        name: str,
        workload: ConvWorkload,
        weight: Array | None,
        vectors: Constants,
        open_sizes: tuple[str, ...] = (),
    ) -> SparseChoice | None:
        """Return the sparse kernel for a convolution with this weight and the epilogue's vectors; None for a dense one.

        Where logs have records of a sparse and a dense kernel, "auto" takes the faster one, and else a sparse one where
        the template says that it pays. On a GPU a kernel for any batch is chosen for a few images, and has to pay at
        each of the batches that dense ones are chosen for. Constants that are not finite get no sparse kernel, and
        neither do open sizes that no sparse template takes. Raises `InvalidArgumentError` in mode "always" where the
        weight is computed (None here).
        """
        if self._mode == "never":
            return None
        if weight is None:
            if self._mode == "always":
                expected = f"auto or never: the weight of {name} is computed when the model runs, not a constant"
                raise InvalidArgumentError("sparse", self._mode, expected)
            return None
        if "scale" in vectors:
            shape = workload.out_channels, -1, *workload.kernel
            weight = (weight.reshape(shape) * vectors["scale"].reshape(-1, 1, 1, 1)).reshape(workload.w_shape)
        constants = {"w": weight, **{name: array for name, array in vectors.items() if name != "scale"}}
        if not all(map(is_finite, constants.values())):
            return None
        plain, zeros = workload.without_scale(), sparsity_of(weight)
        problem = Problem(plain, zeros, open_sizes=open_sizes)
        if "sparse" not in algorithms_for(problem, self._target):
            return None
        batches = at_assumed_sizes(problem) if "batch" in open_sizes and self._by_batch else [problem]
        problem = batches[len(batches) // 2]
        if self._mode == "auto" and not self._pays(workload, weight, batches):
            return None
        # Equal sources are compiled once, and are known to the next build: so the name says what is in it.
        key = sha256(problem.to_json().encode())
        for array in constants.values():
            key.update(np.ascontiguousarray(array, np.float32).tobytes())
        function = f"tvmconv_sparse_{key.hexdigest()[:16]}"
        selection = self._select(problem)
        reason = f"{100 * zeros:.3g}% of the weight is zero; {selection.reason}"
        return SparseChoice(function, plain, problem, constants, selection, reason)

    def _pays(self, workload: ConvWorkload, weight: Array, problems: Sequence[Problem]) -> bool:
        """Return whether the sparse kernel should be the faster one, at each batch that the problems have."""
        if len(problems) == 1 and (sparse := tuned(problems[0], self._target)):
            dense = tuned(Problem(workload, precision=self._precision), self._target)
            if dense and str(dense.record.device) == str(sparse.record.device):
                return sparse.record.cost < dense.record.cost
        if sparsity_of(weight) < THRESHOLD or int(np.count_nonzero(weight)) > MAX_NONZEROS:
            return False
        return self._is_faster(tuple(problems))

    def _selection(self, problem: Problem) -> Selection:
        return select(problem, self._target, algorithm="sparse")

    def _faster(self, problems: tuple[Problem, ...]) -> bool:
        config = self._select(problems[len(problems) // 2]).config
        template = sparse_template(self._target)
        return all(
            template.pays(each, config, self._target, self._weight_bytes, partial(self._dense_cycles, each))
            for each in problems
        )

    def _dense_cycles(self, problem: Problem) -> float:
        """Return the least estimate of the clock cycles of a dense kernel, in NCHW or in networks' inner layout."""
        dense = msgspec.structs.replace(problem, sparsity=None, precision=self._precision, constant_weight=True)
        inner = with_layout(dense.workload, inner_layout(self._target))
        layouts = dense, msgspec.structs.replace(dense, workload=inner)
        return min(least_cycles(each, self._target) for each in layouts if algorithms_for(each, self._target))
