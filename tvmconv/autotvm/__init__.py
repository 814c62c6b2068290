"""Tuning under AutoTVM's names: tasks, tuners, measuring, records, and the use of what was found.

task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 512, 96, 96), (512, 1, 3, 3)), "cuda")
option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
autotvm.XGBTuner(task).tune(200, option, callbacks=[autotvm.callback.log_to_file("conv.jsonl")])
with autotvm.apply_history_best("conv.jsonl"):
    operator = tvmconv.compile(task.workload, "cuda")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import callback, record
    from .builder import LocalBuilder
    from .history import apply_history_best
    from .measure import MeasureInput, MeasureResult, Stage, Status, measure_option
    from .rpc_runner import RPCRunner
    from .runner import LocalRunner
    from .session import tune_tasks
    from .simulator import Simulator
    from .task import Task, create, extract_from_model, extract_from_suite
    from .tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner

_LAZY = {
    "GATuner": "tuner",
    "GridSearchTuner": "tuner",
    "LocalBuilder": "builder",
    "LocalRunner": "runner",
    "MeasureInput": "measure",
    "MeasureResult": "measure",
    "RPCRunner": "rpc_runner",
    "RandomTuner": "tuner",
    "Simulator": "simulator",
    "Stage": "measure",
    "Status": "measure",
    "Task": "task",
    "XGBTuner": "tuner",
    "apply_history_best": "history",
    "create": "task",
    "extract_from_model": "task",
    "extract_from_suite": "task",
    "measure_option": "measure",
    "tune_tasks": "session",
}

__all__ = [
    "GATuner",
    "GridSearchTuner",
    "LocalBuilder",
    "LocalRunner",
    "MeasureInput",
    "MeasureResult",
    "RPCRunner",
    "RandomTuner",
    "Simulator",
    "Stage",
    "Status",
    "Task",
    "XGBTuner",
    "apply_history_best",
    "callback",
    "create",
    "extract_from_model",
    "extract_from_suite",
    "measure_option",
    "record",
    "tune_tasks",
]


def __getattr__(name: str) -> Any:
    if name in ("callback", "record"):
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        raise AttributeError(f"module 'tvmconv.autotvm' has no attribute {name!r}")
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)
