"""Which schedule and which configuration a problem gets: given by the caller, of a tuning log, or the default."""

from .registry import (
    algorithms_for,
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
from .selection import Selection, select, tuned

__all__ = [
    "Selection",
    "algorithms_for",
    "dense_algorithms",
    "least_cycles",
    "register",
    "select",
    "sparse_template",
    "template_for",
    "template_name",
    "template_named",
    "templates_for",
    "tuned",
    "unregister",
]
