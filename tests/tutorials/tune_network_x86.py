"""A convolutional network tuned for this CPU, with the calls of AutoTVM's tutorial on that.

python tune_network_x86.py MODEL.onnx
"""

import os
import sys

import numpy as np
import onnx
import tvm

import tvmconv.contrib.graph_executor as runtime
from tvmconv import autotvm, relay
from tvmconv.autotvm.tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner

input_name, input_shape, dtype = "x", (1, 4, 14, 14), "float32"
target = "llvm"
log_file = "network.log"
os.environ["TVM_NUM_THREADS"] = "1"

tuning_option = {
    "log_filename": log_file,
    "tuner": "random",
    "early_stopping": None,
    "measure_option": autotvm.measure_option(
        builder=autotvm.LocalBuilder(),
        runner=autotvm.LocalRunner(number=1, repeat=3, min_repeat_ms=0, enable_cpu_cache_flush=True),
    ),
}


def tune_kernels(tasks, measure_option, tuner, early_stopping, log_filename):
    for number, task in enumerate(tasks, 1):
        prefix = f"[Task {number:2d}/{len(tasks):2d}] "
        if tuner == "xgb":
            tuner_obj = XGBTuner(task, loss_type="reg", feature_type="knob")
        elif tuner == "xgb_rank":
            tuner_obj = XGBTuner(task, loss_type="rank")
        elif tuner == "ga":
            tuner_obj = GATuner(task, pop_size=50)
        elif tuner == "random":
            tuner_obj = RandomTuner(task)
        else:
            tuner_obj = GridSearchTuner(task)
        n_trial = min(2, len(task.config_space))
        tuner_obj.tune(
            n_trial=n_trial,
            early_stopping=early_stopping,
            measure_option=measure_option,
            callbacks=[
                autotvm.callback.progress_bar(n_trial, prefix=prefix),
                autotvm.callback.log_to_file(log_filename),
            ],
        )


def evaluate_performance(lib, data_shape):
    dev = tvm.cpu()
    module = runtime.GraphModule(lib["default"](dev))
    module.set_input(input_name, np.random.uniform(size=data_shape).astype(dtype))
    print(module.benchmark(dev, number=2, repeat=3))


def tune_and_evaluate(option):
    mod, params = relay.frontend.from_onnx(onnx.load(sys.argv[1]), {input_name: input_shape})
    tasks = autotvm.task.extract_from_program(
        mod["main"], target=target, params=params, ops=(relay.op.get("nn.conv2d"),)
    )
    print(f"{len(tasks)} tasks")
    tune_kernels(tasks, **option)
    option["measure_option"].close()

    with tvm.transform.PassContext(opt_level=3):
        lib = relay.build(mod, target=target, params=params)
        evaluate_performance(lib, input_shape)

    with autotvm.apply_history_best(log_file):
        with tvm.transform.PassContext(opt_level=3):
            lib = relay.build(mod, target=target, params=params)
        evaluate_performance(lib, input_shape)
    for layer in lib.network.layers:
        print(f"{layer.convolution.name}: {layer.reason}")


if __name__ == "__main__":
    tune_and_evaluate(tuning_option)
