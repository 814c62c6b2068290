"""A template of one's own on CUDA: the softmax of rows, each by the threads of a block that add up together.

    python examples/softmax_template.py [ROWS] [COLUMNS]

On a machine with a GPU it is tuned there. Without one, some of its configurations are checked as their serial twins.
"""

from __future__ import annotations

import sys
from typing import Any

from tvm import te
from tvm.s_tir import Schedule

from tvmconv import autotvm
from tvmconv.targets import has_gpu

LOG = "softmax.jsonl"


@autotvm.template("example/softmax")
def softmax(rows: int, columns: int) -> tuple[Schedule, list[te.Tensor]]:
    """Schedule Y (rows, columns), the softmax of each row of X: exponentials as parts of their sum."""
    x = te.placeholder((rows, columns), "float32", name="X")
    k, r = te.reduce_axis((0, columns), name="k"), te.reduce_axis((0, columns), name="r")
    most = te.compute((rows,), lambda i: te.max(x[i, k], axis=k), name="most")
    total = te.compute((rows,), lambda i: te.sum(te.exp(x[i, r] - most[i]), axis=r), name="total")
    y = te.compute((rows, columns), lambda i, j: te.exp(x[i, j] - most[i]) / total[i], name="Y")
    sch = Schedule(te.create_prim_func([x, y]))

    cfg: Any = autotvm.get_config()
    cfg.define_split("columns", columns, num_outputs=3, filter=lambda tile: tile.size[1] in (32, 64, 128, 256))
    cfg.define_knob("unroll", [0, 16])
    cfg.add_flop(rows * columns * 4)
    _, threads, vector = cfg["columns"].size

    # Step 1. A block of threads for each row; each thread writes vectors.
    output = sch.get_sblock("Y")
    row, column = sch.get_loops(output)
    sch.bind(row, "blockIdx.x")
    outer, thread, inner = cfg["columns"].apply(sch, output, column)
    sch.bind(thread, "threadIdx.x")
    if vector <= 4:
        sch.vectorize(inner)

    # Step 2. The row's largest element and its sum, which the threads find together.
    for name in ("total", "most"):
        block = sch.get_sblock(name)
        sch.compute_at(block, row)
        sch.set_scope(block, 0, "shared")
        _, thread = sch.split(sch.get_loops(block)[-1], factors=[None, threads])
        sch.bind(thread, "threadIdx.x")

    # Step 3. Loops unrolled, where it is worth it.
    sch.annotate(outer, "pragma_auto_unroll_max_step", cfg["unroll"].val)
    sch.annotate(outer, "pragma_unroll_explicit", 1)
    return sch, [x, y]


def main(rows: int = 4096, columns: int = 1024) -> None:
    """Tune the softmax, or check its results."""
    task = autotvm.task.create("example/softmax", args=(rows, columns), target="cuda")
    print(f"{task}: {task.config_space}")
    if not has_gpu():
        for config in task.config_space.configs[::5]:
            task.check(config)
            print(f"right: {config}")
        return
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    (summary,) = autotvm.tune_tasks([task], LOG, option, trials=64, seed=0)
    option.close()
    print(f"best: {summary.best_config}, {1e6 * summary.best_cost:.1f} µs")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
