"""Tuners: ways to search the space of a task."""

from tvmconv.problem.errors import names_of

from ..gone import NAMES
from .ga_tuner import GATuner
from .index_based_tuner import GridSearchTuner, RandomTuner
from .tuner import Callback, Tuner
from .xgb_tuner import XGBTuner

__all__ = ["Callback", "GATuner", "GridSearchTuner", "RandomTuner", "Tuner", "XGBTuner"]

__getattr__ = names_of(__name__, NAMES)
