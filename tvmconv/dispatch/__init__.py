"""Which schedule and which configuration a workload gets: given by the caller, of a tuning log, or the default."""

from .registry import (
    ALGORITHMS,
    algorithms_for,
    estimated_cycles,
    sparse_template,
    template_for,
    template_name,
    template_named,
    templates_for,
)
from .selection import Selection, select, select_sparse

__all__ = [
    "ALGORITHMS",
    "Selection",
    "algorithms_for",
    "estimated_cycles",
    "select",
    "select_sparse",
    "sparse_template",
    "template_for",
    "template_name",
    "template_named",
    "templates_for",
]
