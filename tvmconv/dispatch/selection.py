"""The choice of a schedule and a configuration for a problem on a target, with the reason."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tvmconv.problem import Problem
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.precision import DEFAULT
from tvmconv.schedules.template import Selection, Template
from tvmconv.targets import DeviceFacts

from .history import History, applied, device_here, shipped
from .record import Record
from .registry import cached_space, default_config, estimated_cycles, template_for, template_name, templates_for

if TYPE_CHECKING:
    import tvm


MUCH_FASTER = 1.25
"""The least ratio of estimates for which a template without records in our log is taken instead of the tuned one.

It is more than a configuration gains by tuning, in most cases.
"""


class TunedSelection(NamedTuple):
    """A record of a log for a problem, with the selection made from it."""

    selection: Selection
    record: Record
    """The record that the selection is from."""
    history: History
    """The log that has the record."""
    tried: tuple[Template, ...]
    """The templates that the log has records of, for this problem."""


def select(problem: Problem, target: tvm.target.Target, config: Any = None, algorithm: str = "auto") -> Selection:
    """Return the template and configuration for a problem.

    A `config` given by the caller is checked and used, by the template that it belongs to; else the best that a tuning
    log has for this problem and this device, by any template of the algorithm, unless its planes are open: a record is
    of one size; else the default of the template with the least estimate. That is taken, too, where the log that
    tvmconv ships knows nothing of that template, and it should be much faster. Records of a sparse kernel serve for
    shares of zeros near to theirs: see `history.serves`. The template that is taken keeps the problem's precision,
    whatever its records are of.
    """
    if config is not None:
        selection = _given(config, problem, target, templates_for(problem, target, algorithm))
    elif not problem.has_open_planes and (found := tuned(problem, target, algorithm)):
        selection = _untried(found, problem, target, algorithm) or found.selection
    else:
        template = template_for(problem, target, algorithm)
        share = "" if problem.sparsity is None else f" for {100 * problem.density:.3g}% non-zeros"
        selection = _selection(
            template, default_config(template, problem, str(target)), f"default configuration{share}"
        )
    if problem.precision == DEFAULT:
        return selection
    return replace(selection, reason=f"{selection.reason}; precision {problem.precision}")


def _untried(
    tuned_best: TunedSelection, problem: Problem, target: tvm.target.Target, algorithm: str
) -> Selection | None:
    """Return the default of a template without records in tvmconv's own log, if that has the best, if much faster.

    What users have tuned themselves is theirs to choose.
    """
    if tuned_best.history is not shipped():
        return None
    template, known = template_for(problem, target, algorithm), tuned_best.selection
    if template in tuned_best.tried:
        return None
    cycles = known.template.estimate(problem, known.config, target)
    ratio = cycles / estimated_cycles(template, problem, str(target))
    if ratio < MUCH_FASTER:
        return None
    reason = f"default configuration, estimated to be {ratio:.1f} times as fast as {known.name}"
    return _selection(template, default_config(template, problem, str(target)), f"{reason}, {known.reason}")


def tuned(problem: Problem, target: tvm.target.Target, algorithm: str = "auto") -> TunedSelection | None:
    """Return the best configuration that the logs have for a problem by any of the templates, with the reason.

    Logs that are applied come first, then those that tvmconv ships for the device that is there. A workload without
    records of its own takes those of the same without an epilogue, which hardly changes what is fast. Where no log has
    records of the device itself, those of a device like it serve: see `history`. Where none has any of the problem's
    precision, those of another one serve, of the template alone that has the least estimate: others may be slower with
    this precision than what was not measured. An applied log whose records of the workload are all left out says why in
    a warning, unless it has what is found.
    """
    templates, device = templates_for(problem, target, algorithm), device_here(target)
    question = _Question(problem, target, templates, device, [problem])
    found, complaints = question.of_device()
    found = found or question.of_sibling()
    if found is None and (others := problem.in_other_words):
        question = _Question(problem, target, templates, device, others)
        if any(question.candidates()):  # estimates are slow, and most workloads have no records
            question = replace(question, templates=(template_for(problem, target, algorithm),))
            found, more = question.of_device()
            found, complaints = found or question.of_sibling(), {**complaints, **more}
    if found is not None:
        complaints.pop(found.history, None)
    for complaint in complaints.values():
        warnings.warn(complaint, stacklevel=2)
    return found


@dataclass(frozen=True)
class _Question:
    """A question to the logs: which configuration is best for a workload."""

    problem: Problem
    target: tvm.target.Target
    templates: Sequence[Template]
    device: DeviceFacts | None
    """The device of the target; None where it is not here."""
    measured: Sequence[Problem]
    """The problems whose records are used, the best first: the problem itself, or with other precisions."""

    def of_device(self) -> tuple[TunedSelection | None, dict[History, str]]:
        """Return a log's best for the device itself, and complaints about applied logs before it that have none.

        A log is complained about where it has records of the workload, and all of them are left out.
        """
        complaints: dict[History, str] = {}
        for history, problem, how in self.candidates():
            answers = [history.best(problem, self.target, template, self.device) for template in self.templates]
            records = [record for record, _ in answers]
            if found := self._fastest(history, records, how):
                return found, complaints
            left_out = sum((objections for _, objections in answers), Counter[str]())
            if left_out and history in applied.get() and not any(records):
                why = ", ".join(f"{count} {text}" for text, count in left_out.items())
                complaints[history] = f"{history.source}: records of {problem.workload} are left out: {why}"
        return None, complaints

    def of_sibling(self) -> TunedSelection | None:
        """Return a log's best for a device like the one that is here."""
        if self.device is None:
            return None
        for history, problem, how in self.candidates():
            records = [
                history.best_of_sibling(problem, self.target, template, self.device) for template in self.templates
            ]
            if found := self._fastest(history, records, how, ", by a sibling"):
                return found
        return None

    def candidates(self) -> Iterator[tuple[History, Problem, str]]:
        """Yield the logs with records that may serve, the problems of these, and the reason's words, in order."""
        described: dict[Problem, str] = {}
        for problem in self.measured:
            word = "" if problem == self.problem else f" for {problem.precision}"
            plain = problem.workload.without_epilogue()
            described[problem] = f"tuned{word}"
            described.setdefault(msgspec.structs.replace(problem, workload=plain), f"tuned{word} without its epilogue")
        for history in (*applied.get(), *((shipped(),) if self.device is not None else ())):
            yield from ((history, same, how) for same, how in described.items() if history.knows(same))

    def _fastest(
        self, history: History, records: Sequence[Record | None], how: str, whose: str = ""
    ) -> TunedSelection | None:
        """Return the fastest of the records, one for each template, whose configuration is legal for the workload."""
        pairs = [(record, template) for record, template in zip(records, self.templates, strict=True) if record]
        for record, template in sorted(pairs, key=lambda pair: pair[0].cost):
            config = msgspec.convert(record.knobs, template.Config)
            if not cached_space(template, self.problem, str(self.target)).violated(config):
                zeros = "" if (share := record.sparsity) is None else f" for {100 * share:.4g}% zeros"
                cost = f"{1e6 * record.cost:.2f} µs on {record.device}"
                reason = f"{how}{zeros}{whose}: {cost} ({history.source})"
                return TunedSelection(
                    _selection(template, config, reason), record, history, tuple(each for _, each in pairs)
                )
        return None


def _given(config: Any, problem: Problem, target: tvm.target.Target, templates: Sequence[Template]) -> Selection:
    template = next((each for each in templates if each.Config is type(config)), None)
    if template is None:
        raise InvalidArgumentError(
            "config", config, " or ".join(f"a Config of {template_name(each)}" for each in templates)
        )
    if broken := cached_space(template, problem, str(target)).violated(config):
        raise InvalidArgumentError("config", config, f"one that meets the constraints {', '.join(broken)}")
    return _selection(template, config, "configuration given by the caller")


def _selection(template: Template, config: Any, reason: str) -> Selection:
    return Selection(template, config, reason, template_name(template))
