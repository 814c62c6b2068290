"""Which schedule and which configuration a workload gets on a target, and why."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..errors import InvalidArgumentError
from ..targets import DeviceFacts
from ..workload import ConvWorkload, Epilogue
from .history import History, applied, device_here, shipped
from .problem import Problem
from .record import Record
from .registry import kept_space, require_dtype, sparse_template, template_name, templates_for

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Selection:
    """A template, the configuration to use it with, and the reason in words."""

    template: ModuleType
    config: Any
    reason: str

    @property
    def name(self) -> str:
        """Where the template is, such as "cuda/depthwise"."""
        return template_name(self.template)


class Found(NamedTuple):
    """What a log has for a workload."""

    selection: Selection
    record: Record
    """The one that it is from."""
    history: History
    """The log that has it."""


def select(workload: ConvWorkload, target: tvm.target.Target, config: Any = None, algorithm: str = "auto") -> Selection:
    """The template and configuration for a workload.

    A `config` given by the caller is checked and used, by the template that it belongs to; else the best that a tuning
    log has for this workload and this device, by any template of the algorithm; else the default of the first.
    """
    templates = templates_for(workload, target, algorithm)
    if config is None:
        if found := tuned(workload, target, templates):
            return found.selection
        return Selection(templates[0], templates[0].default_config(workload, target), "default configuration")
    return _given(config, workload, target, templates)


def select_sparse(workload: ConvWorkload, target: tvm.target.Target, sparsity: float, config: Any = None) -> Selection:
    """The same for a workload whose weight, with this share of zeros, is compiled in.

    Records are those of shares near to it: see `history.serves`.
    """
    if not workload.is_in_nchw:
        raise InvalidArgumentError("layout", workload.layouts, "NCHW, with a sparse weight")
    require_dtype(workload, target)
    template, density = sparse_template(target), 1 - sparsity
    if config is not None:
        return _given(config, workload, target, [template])
    if found := tuned(workload, target, [template], sparsity):
        return found.selection
    reason = f"default configuration for {100 * density:.3g}% non-zeros"
    return Selection(template, template.default_config(workload, target, density), reason)


def tuned(
    workload: ConvWorkload, target: tvm.target.Target, templates: Sequence[ModuleType], sparsity: float | None = None
) -> Found | None:
    """The best configuration that the logs have for a workload by any of the templates, and the reason to use it.

    With a `sparsity` it is for the sparse kernel of a weight with that share of zeros.

    Logs that are applied come first, then those that tvmconv ships for the device that is there. A workload without
    records of its own takes those of the same without an epilogue, which hardly changes what is fast. Where no log has
    records of the device itself, those of a device like it serve: see `siblings`. An applied log whose records of the
    workload are all left out says why in a warning, unless it has what is found.
    """
    question = _Question(workload, target, templates, sparsity, device_here(target))
    found, complaints = question.of_device()
    found = found or question.of_sibling()
    if found is not None:
        complaints.pop(found.history, None)
    for complaint in complaints.values():
        warnings.warn(complaint, stacklevel=2)
    return found


@dataclass(frozen=True)
class _Question:
    """What the logs are asked for."""

    workload: ConvWorkload
    target: tvm.target.Target
    templates: Sequence[ModuleType]
    sparsity: float | None
    device: DeviceFacts | None
    """The device of the target; None where that is not here."""

    def of_device(self) -> tuple[Found | None, dict[History, str]]:
        """What a log has of the device itself, and what is to be said of the applied logs before it that have nothing.

        A log is complained about where it has records of the workload, and all of them are left out.
        """
        complaints: dict[History, str] = {}
        for history, same, how in self._places():
            problem = Problem(same, self.sparsity)
            answers = [history.best(problem, self.target, template, self.device) for template in self.templates]
            records = [record for record, _ in answers]
            if found := self._fastest(history, records, how):
                return found, complaints
            left_out = sum((objections for _, objections in answers), Counter[str]())
            if left_out and history in applied.get() and not any(records):
                why = ", ".join(f"{count} {text}" for text, count in left_out.items())
                complaints[history] = f"{history.source}: records of {same} are left out: {why}"
        return None, complaints

    def of_sibling(self) -> Found | None:
        """What a log has of a device like the one that is here."""
        if self.device is None:
            return None
        for history, same, how in self._places():
            problem, device = Problem(same, self.sparsity), self.device
            records = [history.best_of_sibling(problem, self.target, template, device) for template in self.templates]
            if found := self._fastest(history, records, how, ", by a sibling"):
                return found
        return None

    def _places(self) -> Iterator[tuple[History, ConvWorkload, str]]:
        """The logs, the workloads whose records serve, and what the reason says of these, in the order of asking."""
        described = {self.workload: "tuned"}
        plain = msgspec.structs.replace(self.workload, epilogue=Epilogue())
        described.setdefault(plain, "tuned without its epilogue")
        for history in (*applied.get(), *((shipped(),) if self.device is not None else ())):
            for same, how in described.items():
                yield history, same, how

    def _fastest(self, history: History, records: Sequence[Record | None], how: str, whose: str = "") -> Found | None:
        """The fastest of the records, one a template, whose configuration is legal for the workload."""
        pairs = [(record, template) for record, template in zip(records, self.templates, strict=True) if record]
        for record, template in sorted(pairs, key=lambda pair: pair[0].cost):
            config = msgspec.convert(record.knobs, template.Config)
            if not kept_space(template, self.workload, str(self.target)).violated(config):
                zeros = "" if (share := record.sparsity) is None else f" for {100 * share:.4g}% zeros"
                cost = f"{1e6 * record.cost:.2f} µs on {record.device}"
                reason = f"{how}{zeros}{whose}: {cost} ({history.source})"
                return Found(Selection(template, config, reason), record, history)
        return None


def _given(
    config: Any, workload: ConvWorkload, target: tvm.target.Target, templates: Sequence[ModuleType]
) -> Selection:
    template = next((each for each in templates if each.Config is type(config)), None)
    if template is None:
        raise InvalidArgumentError("config", config, " or ".join(f"a {each.__name__}.Config" for each in templates))
    if broken := kept_space(template, workload, str(target)).violated(config):
        raise InvalidArgumentError("config", config, f"one that meets the constraints {', '.join(broken)}")
    return Selection(template, config, "configuration given by the caller")
