"""Level 8: a weight that is known, nine tenths of it zeros, becomes code.

Where the weight is a constant of a trained and pruned network, its numbers need not be in memory. The loops over
channels and taps are unrolled, each load of a weight is replaced by its number, and a multiply-add by zero is dropped:

    for c, r, s, k:                               sums[0] += pad[17] * 0.731
        sums[k] += pad[c, r, s] * w[k, c, r, s]   sums[5] += pad[17] * -1.25
                                            -->   sums[2] += pad[18] * 0.044
                                                  ...                          3686 lines instead of 36864

A thread has one pixel and a block of output channels; pixels of a chunk of input channels are in shared memory, as in
level 3, and the weight is in the instructions.

Beside level 4: the schedule marks the loops that are to be unrolled, and `tvmconv/lowering/folding` does it for a given
weight. The template is `cuda/sparse`; `tvmconv.sparse_conv2d(w)` does the same for arrays.

Look at: the rate that is printed counts the multiply-adds of the dense convolution, of which nine tenths are not
computed: it is there to be compared with the other levels. Each multiply-add that is left is an instruction of 16 bytes
that is fetched, so the code, here some 60 kB, replaces the weight as what must be brought.
"""

from __future__ import annotations

from common import FLOAT32, TARGET, Arrays, Level
from tvm.runtime import Executable
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.checking.pruning import random_constants
from tvmconv.dispatch import Selection, select
from tvmconv.lowering import build_kernel, build_twin
from tvmconv.problem import Problem
from tvmconv.problem.constants import Constants

SPARSITY = 0.9
SMALL = ConvWorkload.conv2d((1, 8, 8, 28), (16, 8, 3, 3), padding=1)


def selected(workload: ConvWorkload) -> tuple[Problem, Selection]:
    """Return the problem with its share of zeros, and the library's template with the configuration for that."""
    problem = Problem(workload, sparsity=SPARSITY)
    return problem, select(problem, TARGET)


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution for any weight; zeros are folded behind it."""
    problem, selection = selected(workload)
    return selection.template.schedule(problem, selection.config, TARGET)


class Folded(Level):
    """A level whose weight is in the code of its kernel."""

    @property
    def passed(self) -> tuple[str, ...]:
        return ("x", "output")

    def constants(self, workload: ConvWorkload) -> Constants:
        return random_constants(workload, SPARSITY)

    def operands(self, workload: ConvWorkload) -> Arrays:
        return {**super().operands(workload), **self.constants(workload)}

    def kernel(self, workload: ConvWorkload) -> Executable:
        return build_kernel(*selected(workload), TARGET, self.constants(workload)).executable

    def twin(self, workload: ConvWorkload) -> Executable:
        return build_twin(*selected(workload), TARGET, self.constants(workload)).executable


LEVEL = Folded(8, "folded zeros", FLOAT32, SMALL, schedule)

if __name__ == "__main__":
    LEVEL.run()
