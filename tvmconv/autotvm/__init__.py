"""Tuning under AutoTVM's names: tasks, tuners, measuring, records, and the use of the best records.

A task is tuned, and its best record applied, as with AutoTVM:

    task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 512, 96, 96), (512, 1, 3, 3)), "cuda")
    option = autotvm.measure_option(autotvm.LocalBuilder(), autotvm.LocalRunner())
    autotvm.XGBTuner(task).tune(200, option, callbacks=[autotvm.callback.log_to_file("conv.jsonl")])
    with autotvm.apply_history_best("conv.jsonl"):
        operator = tvmconv.compile(task.workload, "cuda")
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tvmconv.problem.errors import names_of

from .gone import NAMES

if TYPE_CHECKING:
    from . import callback, measure, record, task, tuner
    from .history import ApplyHistoryBest, FallbackContext, apply_history_best
    from .measure import MeasureErrorNo, MeasureInput, MeasureResult, Stage, Status, measure_option
    from .measure.builder import LocalBuilder
    from .measure.runner import LocalRunner
    from .rpc.runner import RPCRunner
    from .session import tune_tasks
    from .simulator import Simulator
    from .task import Task, create, extract_from_model, extract_from_program, extract_from_suite
    from .templates import template
    from .templates.config_space import ConfigEntity, ConfigSpace, FallbackConfigEntity
    from .templates.instance import get_config
    from .templates.knobs import AnnotateEntity, OtherOptionEntity, ReorderEntity, SplitEntity
    from .tuner import GATuner, GridSearchTuner, RandomTuner, XGBTuner

_MODULES = ("callback", "measure", "record", "task", "tuner")

_LAZY = {
    "AnnotateEntity": "templates.knobs",
    "ApplyHistoryBest": "history",
    "ConfigEntity": "templates.config_space",
    "ConfigSpace": "templates.config_space",
    "FallbackConfigEntity": "templates.config_space",
    "FallbackContext": "history",
    "GATuner": "tuner",
    "GridSearchTuner": "tuner",
    "LocalBuilder": "measure.builder",
    "LocalRunner": "measure.runner",
    "MeasureErrorNo": "measure",
    "MeasureInput": "measure",
    "MeasureResult": "measure",
    "OtherOptionEntity": "templates.knobs",
    "RPCRunner": "rpc.runner",
    "RandomTuner": "tuner",
    "ReorderEntity": "templates.knobs",
    "Simulator": "simulator",
    "SplitEntity": "templates.knobs",
    "Stage": "measure",
    "Status": "measure",
    "Task": "task",
    "XGBTuner": "tuner",
    "apply_history_best": "history",
    "create": "task",
    "extract_from_model": "task",
    "extract_from_program": "task",
    "extract_from_suite": "task",
    "get_config": "templates.instance",
    "measure_option": "measure",
    "template": "templates",
    "tune_tasks": "session",
}

__all__ = [
    "AnnotateEntity",
    "ApplyHistoryBest",
    "ConfigEntity",
    "ConfigSpace",
    "FallbackConfigEntity",
    "FallbackContext",
    "GATuner",
    "GridSearchTuner",
    "LocalBuilder",
    "LocalRunner",
    "MeasureErrorNo",
    "MeasureInput",
    "MeasureResult",
    "OtherOptionEntity",
    "RPCRunner",
    "RandomTuner",
    "ReorderEntity",
    "Simulator",
    "SplitEntity",
    "Stage",
    "Status",
    "Task",
    "XGBTuner",
    "apply_history_best",
    "callback",
    "create",
    "extract_from_model",
    "extract_from_program",
    "extract_from_suite",
    "get_config",
    "measure",
    "measure_option",
    "record",
    "task",
    "template",
    "tune_tasks",
    "tuner",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f".{name}", __name__)
    if name not in _LAZY:
        return names_of(__name__, NAMES)(name)
    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
