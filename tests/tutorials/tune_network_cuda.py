"""A convolutional network tuned for an NVIDIA GPU, with the calls of AutoTVM's tutorial on that.

    python tune_network_cuda.py MODEL.onnx

Where there is no GPU the kernels are built for one, and times are made up.
"""

import os
import sys

import numpy as np
import onnx
import tvm
from without_gpu import PretendedRunner

import tvmconv.contrib.graph_executor as runtime
from tvmconv import autotvm, relay
from tvmconv.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner
from tvmconv.targets import has_gpu

target = "cuda"
log_file = "network.log"
input_shape, dtype = (1, 4, 14, 14), "float32"

runner = autotvm.LocalRunner(number=20, repeat=3, timeout=4, min_repeat_ms=15) if has_gpu() else PretendedRunner()
tuning_option = {
    "log_filename": log_file,
    "tuner": "xgb",
    "n_trial": 2,
    "early_stopping": 600,
    "measure_option": autotvm.measure_option(builder=autotvm.LocalBuilder(timeout=60), runner=runner),
}


def tune_tasks(tasks, measure_option, tuner, n_trial, early_stopping, log_filename, use_transfer_learning=True):
    tmp_log_file = log_filename + ".tmp"
    if os.path.exists(tmp_log_file):
        os.remove(tmp_log_file)

    for number, task in enumerate(reversed(tasks), 1):
        prefix = f"[Task {number:2d}/{len(tasks):2d}] "
        if tuner in ("xgb", "xgb-rank"):
            tuner_obj = XGBTuner(task, loss_type="rank")
        elif tuner == "ga":
            tuner_obj = GATuner(task, pop_size=100)
        elif tuner == "random":
            tuner_obj = RandomTuner(task)
        else:
            tuner_obj = GridSearchTuner(task)

        if use_transfer_learning and os.path.isfile(tmp_log_file):
            tuner_obj.load_history(autotvm.record.load_from_file(tmp_log_file))

        trials = min(n_trial, len(task.config_space))
        tuner_obj.tune(
            n_trial=trials,
            early_stopping=early_stopping,
            measure_option=measure_option,
            callbacks=[
                autotvm.callback.progress_bar(trials, prefix=prefix),
                autotvm.callback.log_to_file(tmp_log_file),
            ],
        )

    autotvm.record.pick_best(tmp_log_file, log_filename)
    os.remove(tmp_log_file)


def tune_and_evaluate(option):
    mod, params = relay.frontend.from_onnx(onnx.load(sys.argv[1]), {"x": input_shape})
    tasks = autotvm.task.extract_from_program(
        mod["main"], target=target, params=params, ops=(relay.op.get("nn.conv2d"),)
    )
    tune_tasks(tasks, **option)
    option["measure_option"].close()

    with autotvm.apply_history_best(log_file):
        with tvm.transform.PassContext(opt_level=3):
            lib = relay.build_module.build(mod, target=target, params=params)
    for layer in lib.network.layers:
        print(f"{layer.convolution.name}: {layer.reason}")
    if has_gpu():
        dev = tvm.cuda()
        module = runtime.GraphModule(lib["default"](dev))
        module.set_input("x", np.random.uniform(size=input_shape).astype(dtype))
        print(module.benchmark(dev, number=1, repeat=10))


if __name__ == "__main__":
    tune_and_evaluate(tuning_option)
