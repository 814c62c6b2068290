"""The choice of a schedule and a configuration for a problem: the caller's, one of a tuning log, or the default."""

from tvmconv.schedules.template import Selection

from .ranges import Range, at_assumed_sizes, range_with, select_ranges
from .registry import (
    TEMPLATES,
    algorithm_of,
    algorithms_for,
    algorithms_on,
    dense_algorithms,
    least_cycles,
    register,
    sparse_template,
    template_for,
    template_name,
    template_named,
    templates_for,
    unregister,
)
from .selection import select, tuned

__all__ = [
    "TEMPLATES",
    "Range",
    "Selection",
    "algorithm_of",
    "algorithms_for",
    "algorithms_on",
    "at_assumed_sizes",
    "dense_algorithms",
    "least_cycles",
    "range_with",
    "register",
    "select",
    "select_ranges",
    "sparse_template",
    "template_for",
    "template_name",
    "template_named",
    "templates_for",
    "tuned",
    "unregister",
]
