"""A template of one's own: a matrix product whose tiles are tuned, as in AutoTVM's tutorial on writing templates.

    python examples/matmul_template.py [SIZE] [TRIALS]

Takes a minute on two cores. The log is added to: run again, it goes on.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import autotvm

LOG = "matmul.jsonl"


@autotvm.template("tutorial/matmul")  # 1. a name, under which logs have it
def matmul(n: int, k: int, m: int, dtype: str) -> tuple[Schedule, list[te.Tensor]]:
    """Schedule C (n, m) = A (n, k) times B (k, m), by tiles of rows and columns."""
    a = te.placeholder((n, k), dtype, name="A")
    b = te.placeholder((k, m), dtype, name="B")
    r = te.reduce_axis((0, k), name="r")
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), name="C")
    sch = Schedule(te.create_prim_func([a, b, c]))
    block = sch.get_sblock("C")
    y, x, z = sch.get_loops(block)

    cfg: Any = autotvm.get_config()  # 2. the knobs
    cfg.define_split("tile_y", n, num_outputs=2, filter=lambda tile: tile.size[-1] <= 16)
    cfg.define_split("tile_x", m, num_outputs=2, max_factor=256)
    cfg.define_knob("vectorize", [False, True])

    yo, yi = cfg["tile_y"].apply(sch, block, y)  # 3. the schedule, by the knobs
    xo, xi = cfg["tile_x"].apply(sch, block, x)
    sch.reorder(yo, xo, z, yi, xi)
    sch.parallel(yo)
    if cfg["vectorize"].val:
        sch.vectorize(xi)
    return sch, [a, b, c]  # 4. and its arguments


def main(size: int = 512, trials: int = 32) -> None:
    """Tune a product of square matrices, and run the best."""
    shape: Any = (size, size, size, "float32")
    task = autotvm.task.create("tutorial/matmul", args=shape, target="llvm")
    print(f"{task}: {task.config_space}")

    option = autotvm.measure_option(
        autotvm.LocalBuilder(), autotvm.LocalRunner(number=3, repeat=3, min_repeat_ms=1, timeout=20)
    )
    (summary,) = autotvm.tune_tasks([task], LOG, option, trials=trials, seed=0)
    option.close()
    print(f"best: {summary.best_config}, {summary.default_cost / summary.best_cost:.1f} times as fast as the default")

    with autotvm.apply_history_best(LOG), tvm.target.Target("llvm"):
        sch, _ = matmul(*shape)
    product = tvm.compile(sch.mod, task.target)

    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((size, size)).astype("float32") for _ in range(2))
    c = tvm.runtime.empty((size, size), "float32")
    product(tvm.runtime.tensor(a), tvm.runtime.tensor(b), c)
    error = np.abs(c.numpy() - a.astype("float64") @ b).max()
    print(f"largest error: {error:.2g}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
