"""A template for convolutions on NVIDIA GPUs, tuned with the calls of AutoTVM's tutorial on that.

    python tune_conv2d_cuda.py

Where there is no GPU the kernels are built for one and checked as their serial twins, and times are made up.
"""

import logging
import sys

import numpy as np
import tvm
from tvm import te, topi
from tvm.s_tir import Schedule
from without_gpu import PretendedRunner

from tvmconv import autotvm
from tvmconv.compute import conv2d_reference
from tvmconv.problem.workload import ConvWorkload
from tvmconv.targets import has_gpu


@autotvm.template("tutorial/conv2d_no_batching")
def conv2d_no_batching(N, H, W, CO, CI, KH, KW, stride, padding):
    assert N == 1, "this template is for a single image"
    data = te.placeholder((N, CI, H, W), name="data")
    kernel = te.placeholder((CO, CI, KH, KW), name="kernel")
    conv = topi.nn.conv2d_nchw(data, kernel, stride, padding, dilation=1, out_dtype="float32")
    s = Schedule(te.create_prim_func([data, kernel, conv]))
    block = s.get_sblock("conv2d_nchw")

    ##### the space #####
    n, f, y, x = conv.op.axis
    rc, ry, rx = conv.op.reduce_axis
    cfg = autotvm.get_config()
    cfg.define_split("tile_f", f, num_outputs=4)
    cfg.define_split("tile_y", y, num_outputs=4)
    cfg.define_split("tile_x", x, num_outputs=4)
    cfg.define_split("tile_rc", rc, num_outputs=3)
    cfg.define_split("tile_ry", ry, num_outputs=3)
    cfg.define_split("tile_rx", rx, num_outputs=3)
    cfg.define_knob("auto_unroll_max_step", [0, 512, 1500])
    cfg.define_knob("unroll_explicit", [0, 1])

    ##### stages: sums in registers, inputs in shared memory, padded on the way there #####
    output = s.cache_write(block, 0, "local")
    AA = s.cache_read(block, 0, "shared")
    WW = s.cache_read(block, 1, "shared")
    AL = s.cache_read(block, 0, "local")
    WL = s.cache_read(block, 1, "local")
    s.compute_inline(s.get_sblock("pad_temp"))

    ##### tiles of the output, bound to blocks and threads #####
    n, f, y, x = s.get_loops(output)
    bf, vf, tf, fi = cfg["tile_f"].apply(s, output, f)
    by, vy, ty, yi = cfg["tile_y"].apply(s, output, y)
    bx, vx, tx, xi = cfg["tile_x"].apply(s, output, x)
    s.reorder(n, bf, by, bx, vf, vy, vx, tf, ty, tx, fi, yi, xi)
    for axis, loops in (("blockIdx", (bf, by, bx)), ("vthread", (vf, vy, vx)), ("threadIdx", (tf, ty, tx))):
        for dimension, loop in zip("zyx", loops, strict=True):
            s.bind(loop, f"{axis}.{dimension}")
    s.compute_at(block, tx, preserve_unit_loops=True)

    ##### tiles of the sums #####
    *_, n, f, y, x, rc, ry, rx = s.get_loops(block)
    rco, rcm, rci = cfg["tile_rc"].apply(s, block, rc)
    ryo, rym, ryi = cfg["tile_ry"].apply(s, block, ry)
    rxo, rxm, rxi = cfg["tile_rx"].apply(s, block, rx)
    s.reorder(rco, ryo, rxo, rcm, rym, rxm, rci, ryi, rxi, n, f, y, x)
    s.compute_at(AL, rxm, preserve_unit_loops=True)
    s.compute_at(WL, rxm, preserve_unit_loops=True)
    s.compute_at(AA, rxo, preserve_unit_loops=True)
    s.compute_at(WW, rxo, preserve_unit_loops=True)

    ##### all threads of a block fetch together #####
    for load in (AA, WW):
        fused = s.fuse(*s.get_loops(load)[-4:])
        threads = [cfg[name].size[2] for name in ("tile_f", "tile_y", "tile_x")]
        tz, ty, tx, _ = s.split(fused, factors=[*threads, None])
        for dimension, loop in zip("zyx", (tz, ty, tx), strict=True):
            s.bind(loop, f"threadIdx.{dimension}")

    s.annotate(rco, "pragma_auto_unroll_max_step", cfg["auto_unroll_max_step"].val)
    s.annotate(rco, "pragma_unroll_explicit", cfg["unroll_explicit"].val)
    return s, [data, kernel, conv]


def main():
    logging.getLogger("autotvm").setLevel(logging.DEBUG)
    logging.getLogger("autotvm").addHandler(logging.StreamHandler(sys.stdout))

    args = N, H, W, CO, CI, KH, KW, strides, padding = 1, 7, 7, 16, 8, 3, 3, (1, 1), (1, 1)
    task = autotvm.task.create("tutorial/conv2d_no_batching", args=args, target="cuda")
    print(task.config_space)

    runner = autotvm.LocalRunner(repeat=3, min_repeat_ms=100, timeout=4) if has_gpu() else PretendedRunner()
    measure_option = autotvm.measure_option(builder=autotvm.LocalBuilder(timeout=60), runner=runner)
    tuner = autotvm.tuner.XGBTuner(task, seed=0)
    tuner.tune(n_trial=2, measure_option=measure_option, callbacks=[autotvm.callback.log_to_file("conv2d.log")])
    measure_option.close()

    dispatch_context = autotvm.apply_history_best("conv2d.log")
    best_config = dispatch_context.query(task.target, task.workload)
    print("best config:", best_config)
    task.check(best_config)

    with autotvm.apply_history_best("conv2d.log"), task.target:  # TVM's Target("cuda") is an sm_50 without a GPU
        s, arg_bufs = conv2d_no_batching(*args)
    print("arguments:", [buffer.name for buffer in arg_bufs])
    best, _ = task.instantiate(best_config)
    print("scheduled by the best:", str(s.mod) == str(best.mod))
    if has_gpu():
        func, dev = tvm.compile(s.mod, task.target), tvm.cuda()
        a_np = np.random.uniform(size=(N, CI, H, W)).astype(np.float32)
        w_np = np.random.uniform(size=(CO, CI, KH, KW)).astype(np.float32)
        workload = ConvWorkload.conv2d(a_np.shape, w_np.shape, stride=strides, padding=padding)
        c_np = conv2d_reference(workload, a_np, w_np)
        c_tvm = tvm.runtime.empty(c_np.shape, "float32", dev)
        func(tvm.runtime.tensor(a_np, dev), tvm.runtime.tensor(w_np, dev), c_tvm)
        np.testing.assert_allclose(c_tvm.numpy(), c_np, rtol=1e-2)


if __name__ == "__main__":
    main()
