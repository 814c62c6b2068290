"""Names and arguments of AutoTVM that tvmconv lacks, and what to use instead."""

from __future__ import annotations

from collections.abc import Mapping

from tvmconv.problem.errors import InvalidArgumentError

NAMES = {
    "ApplyFixedConfig": "tvmconv.compile(workload, target, config=...)",
    "ApplyGraphBest": "tvmconv.build, which chooses the layouts of a network itself",
    "ConfigLibrary": "apply_history_best with a list of logs",
    "CostModel": "XGBTuner, whose model is xgboost's",
    "DispatchContext": "apply_history_best, or tvmconv.compile(workload, target, config=...)",
    "DPTuner": "tvmconv.build, which chooses the layouts of a network itself",
    "DropletTuner": "XGBTuner, GATuner, RandomTuner or GridSearchTuner",
    "GLOBAL_SCOPE": "arguments: each function and class takes what it depends on",
    "ModelBasedTuner": "XGBTuner",
    "Monitor": "callback.progress_bar, or a function of (tuner, inputs, results)",
    "PBQPTuner": "tvmconv.build, which chooses the layouts of a network itself",
    "apply_fixed_config": "tvmconv.compile(workload, target, config=...)",
    "apply_graph_best": "tvmconv.build, which chooses the layouts of a network itself",
    "args_to_workload": "tvmconv.ConvWorkload",
    "check_remote": "RPCRunner, which says what it misses",
    "database": "log_to_file and record.load_from_file: a log is a file of JSON lines",
    "env": "arguments: each function and class takes what it depends on",
    "extract_from_multiple_program": "extract_from_program for each of the programs",
    "feature": "Task.features, which are numbers of knobs: no code is looked into",
    "graph_tuner": "tvmconv.build, which chooses the layouts of a network itself",
    "load_from_buffer": "record.load_from_file",
    "log_to_database": "callback.log_to_file",
    "measure_methods": "LocalBuilder, LocalRunner and RPCRunner",
    "measure_str_key": "Record.config and Record.problem, which can be compared",
    "register_topi_compute": "template, for a computation of one's own; tvmconv's convolutions have theirs",
    "register_topi_schedule": "template, for a schedule of one's own; tvmconv's convolutions have theirs",
    "request_remote": "RPCRunner, which asks the tracker itself",
    "split_workload": "record.load_from_file, whose records have their problem",
    "tophub": "nothing: the records that tvmconv ships are used without asking",
    "use_history_best": "apply_history_best",
    "util": "nothing: it had functions for AutoTVM's inside",
    "utils": "nothing: it had functions for AutoTVM's inside",
}
"""The replacement of each name of AutoTVM that tvmconv lacks."""

ARGUMENTS = {
    "build_func": "no such argument: TVM's compiler builds for the target of the task",
    "build_kwargs": "no such argument: TVM's compiler builds for the target of the task",
    "diversity_filter_ratio": "no such argument: the trials of a batch are unlike each other as it is",
    "do_fork": "no such argument: workers are processes that stay",
    "elite_num": "no such argument: parents are the best of all trials",
    "log_interval": "no such argument: the logger 'autotvm' tells every trial at its level DEBUG",
    "module_loader": "no such argument: a worker process loads what the builder has built",
    "n_parallel": "no such argument: one kernel runs on a device at a time, and `devices` names several GPUs",
    "num_threads": "no such argument: one thread trains the model",
    "optimizer": "no such argument: the model scores the whole space, in which nothing has to anneal",
    "range_idx": "no such argument: all of the space is searched",
    "runtime": "no such argument: TVM's runtime is the one that tvmconv uses",
}
"""The words behind "expected" in the error for an argument that tvmconv lacks, by its name."""


def refuse_arguments(owner: str, options: Mapping[str, object]) -> None:
    """Raise `InvalidArgumentError` for the first of the keyword arguments that `owner`, a class, does not have."""
    for name, value in options.items():
        raise InvalidArgumentError(name, value, ARGUMENTS.get(name, f"no argument of this name for {owner}"))
