"""Level 7: warps with roles: one copies, the others multiply.

In level 6 each thread copies and multiplies by turns. On sm_90 the copy engine (TMA) brings a whole chunk at the word
of a single thread, and `wgmma` multiplies chunks in shared memory, 64 rows at a time, for a group of four warps. So
warps get roles, and a block stays on its multiprocessor and computes tile after tile:

    producer (one thread of 4 warps)    ring in shared memory        consumers (teams of 4 warps or more)
    for each tile, for each chunk:      +-----+-----+-----+----      for each tile of the team:
        wait until a slot is empty      |  0  |  1  |  2  | ...          for each chunk:
        copy to it  ---------------->   +-----+-----+-----+----  -->         wait until it is full
                                          full / empty barriers              wgmma; declare it empty
                                                                         store the tile

With two teams one stores its tile while the other one multiplies, and the producer is already at the next tiles.

Beside level 6: nothing of this is in the schedule, whose block computes one tile with all threads, as before. Its
annotations SPECIALIZED and BULK tell `tvmconv/lowering/gpu/specialization.py` to rewrite it. So this level takes the
library's template `cuda/tensor`, and only chooses its knobs; `select` refuses a configuration that cannot be.

Look at: `setmaxnreg` in the PTX. Producers give up registers, 40 are left, and consumers take them, up to 232.
"""

from __future__ import annotations

from common import FLOAT16, SMALL16, TARGET, Level
from tvm.s_tir import Schedule

from tvmconv import ConvWorkload
from tvmconv.dispatch import select
from tvmconv.problem import Problem
from tvmconv.schedules.cuda.tensor import Config

CONFIG = Config(block_m=128, block_n=64, warps_m=1, warps_n=1, num_stages=6, wgmma=True, teams=2)
"""Tiles of 128 pixels by 64 channels, and two teams of four warps (1 x 1 groups of four), with a ring of 6 chunks."""


def schedule(workload: ConvWorkload) -> Schedule:
    """Schedule the convolution by the library's template; it needs sm_90."""
    problem = Problem(workload)
    selection = select(problem, TARGET, CONFIG, "tensor")
    return selection.template.schedule(problem, selection.config, TARGET)


LEVEL = Level(7, "warps with roles", FLOAT16, SMALL16, schedule)

if __name__ == "__main__":
    LEVEL.run()
