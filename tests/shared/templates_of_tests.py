"""Templates that tests tune: a matrix product, a template that computes something else, and invalid ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from tvmconv import autotvm


def product(n: int, dtype: str, plus: float = 0.0) -> list[te.Tensor]:
    """Compute C = A times B, to which `plus` is added."""
    a, b = (te.placeholder((n, n), dtype, name=name) for name in "AB")
    r = te.reduce_axis((0, n), name="r")
    c = te.compute((n, n), lambda i, j: te.sum(a[i, r] * b[r, j] + te.const(plus, dtype), axis=r), name="C")
    return [a, b, c]


def on_llvm(call: Callable[[], Any]) -> Any:
    """Return the result of a call under the target of this CPU."""
    with tvm.target.Target("llvm"):
        return call()


@autotvm.template("test/matmul")
def matmul(n: int, dtype: str) -> tuple[Schedule, list[te.Tensor]]:
    arguments = product(n, dtype)
    sch = Schedule(te.create_prim_func(arguments))
    block = sch.get_sblock("C")
    y, x, k = sch.get_loops(block)
    cfg: Any = autotvm.get_config()
    cfg.define_split("tile_y", sch.get(y), num_outputs=2)
    cfg.define_split("tile_x", arguments[2].op.axis[1], num_outputs=2)
    cfg.define_reorder("order", ["yi", "xi"], "all")
    cfg.define_annotate("inner", ["loop"], "try_unroll_vec")
    yo, yi = cfg["tile_y"].apply(sch, block, y)
    xo, xi = cfg["tile_x"].apply(sch, block, x)
    sch.reorder(yo, xo, k, yi, xi)
    *_, last = cfg["order"].apply(sch, block, [yi, xi])
    cfg["inner"].apply(sch, block, [last], max_unroll=16, cfg=cfg)
    return sch, arguments


@autotvm.template("test/another-product")
def another(n: int) -> tuple[Schedule, list[te.Tensor]]:
    """Return a schedule of a computation that does not match its arguments."""
    autotvm.get_config().define_knob("k", [1, 2])
    return Schedule(te.create_prim_func(product(n, "float32", plus=1e-2))), product(n, "float32")


@autotvm.template("test/large")
def large(n: int) -> tuple[Schedule, list[te.Tensor]]:
    """Return a schedule from a space of millions, for tuners alone."""
    arguments = product(n, "float32")
    cfg = autotvm.get_config()
    for name in "abcdefg":
        cfg.define_knob(name, list(range(10)))
    cfg.define_knob("word", ["none", "some"])
    return Schedule(te.create_prim_func(arguments)), arguments


class OwnError(Exception):
    """An error class that no worker of TVM knows."""


@autotvm.template("test/raises")
def raises(n: int) -> tuple[Schedule, list[te.Tensor]]:
    """Schedule rightly by default, and fail in another way for each other configuration."""
    arguments = product(n, "float32")
    sch = Schedule(te.create_prim_func(arguments))
    cfg = autotvm.get_config()
    cfg.define_knob("how", ["right", "schedule", "lookup", "own", "unknown knob"])
    how = cfg["how"].val
    if how == "schedule":
        sch.vectorize(sch.get_loops(sch.get_sblock("C"))[-1])  # the terms of a sum
    elif how == "lookup":
        raise KeyError(how)
    elif how == "own":
        raise OwnError(how)
    elif how == "unknown knob":
        cfg["nope"]
    return sch, arguments
