"""The attributes that every template has, tvmconv's own or one that a user registers, and the choice of one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from tvmconv.problem import Problem, Workload
from tvmconv.problem.dtypes import FLOATS, one_of
from tvmconv.problem.fused import FusedWorkload
from tvmconv.problem.workload import ConvWorkload

from .space import Space

if TYPE_CHECKING:
    from tvm.s_tir import Schedule
    from tvm.target import Target

    from tvmconv.compute.fused import ReferenceOf


class Layouts(NamedTuple):
    """The layouts that a template takes of each operand, by the names of their kinds, and the types that it takes of x.

    See `tvmconv.problem.layout` and `tvmconv.problem.dtypes`.
    """

    x: tuple[str, ...] = ("NCHW",)
    w: tuple[str, ...] = ("KCRS",)
    output: tuple[str, ...] = ("NCHW",)
    """The layouts of the output and the residual."""
    dtypes: tuple[str, ...] = FLOATS
    strided_x: tuple[str, ...] = ()
    """The layouts in which kernels can read x as neighbouring channels of a tensor that has more."""
    strided_output: tuple[str, ...] = ()
    """The layouts in which kernels can store the output as such channels; templates for CPUs can in any."""

    def obstacle(self, workload: Workload) -> str | None:
        """Return which operand of a workload has a layout that is not taken, as `Template.obstacle` does; else None."""
        if not isinstance(workload, ConvWorkload):
            return "is for convolutions"
        if workload.dtype not in self.dtypes:
            return f"takes {one_of(self.dtypes)}, not {workload.dtype}"
        named = workload.x_layout.name, workload.weight_layout.name, workload.output_layout.name
        for operand, name, known in zip(self._fields, named, self, strict=False):
            if name not in known:
                return f"takes {operand} in {' or '.join(known)}, not {name}"
        return None


class Fused(NamedTuple):
    """The kind of workload of several layers that a template takes, and the types that it takes of its factors."""

    kind: type[FusedWorkload]
    reference: ReferenceOf
    """The function that returns the float64 reference of a problem of the kind."""
    dtypes: tuple[str, ...] = FLOATS

    def obstacle(self, workload: Workload) -> str | None:
        """Return why a workload is not of this kind or type, as `Template.obstacle` does; None where it is."""
        if not isinstance(workload, self.kind):
            return f"is for {self.kind.__struct_config__.tag}"
        return None if workload.dtype in self.dtypes else f"takes {one_of(self.dtypes)}, not {workload.dtype}"


@runtime_checkable
class Template(Protocol):
    """A way to schedule the problems that it takes, with knobs to tune.

    The functions take problems without an obstacle, and configurations that are legal for the problem. A template may
    have `DIRECTIONS`, the directions of problems that it takes, of `tvmconv.problem.DIRECTIONS`; one without it takes
    "forward" alone. It may have `takes_strided_rows(config)`, which returns whether kernels can read and store
    operands that are `StridedRows` of a larger tensor; kernels of one without it cannot.
    """

    VERSION: int
    """Raised when old configurations would mean something else: records of another version are left out."""

    Config: type[Any]
    """The knobs, a frozen dataclass. A knob that is added later has a default with which kernels are as they were
    before, so that older records stay true. For a knob that gets another name there is a class variable `FORMER_NAMES`:
    the present names by the former ones, so that records with the former names are read."""

    LAYOUTS: Layouts | Fused
    """The layouts of x, w and the output, and the types of x, that it takes: problems in others never come to it.

    A template of several layers has `Fused` here: a convolution never comes to it, nor do these layers to others.
    """

    OPEN_SIZES: tuple[str, ...]
    """The sizes that may be known only when its kernels run, of `tvmconv.problem.OPEN_SIZES`; it defines its
    computation by `tvmconv.compute.with_open_sizes(problem)`, and decides by the sizes in the problem's workload."""

    LEAST: Any
    """The configuration with the least legal value of each knob."""

    def __hash__(self) -> int:
        """Return the object's hash; dispatch caches defaults and spaces by template."""
        return super().__hash__()

    @abstractmethod
    def obstacle(self, problem: Problem, target: Target) -> str | None:
        """Return why the template does not take a problem in its layouts, to be read behind its name in a message.

        That is the first condition that fails, such as "takes output channels in multiples of 4, not 6"; None without
        one.
        """
        ...

    @abstractmethod
    def space(self, problem: Problem, target: Target) -> Space[Any]:
        """Return the configurations worth a trial, the default among them, and the constraints of legal ones."""
        ...

    @abstractmethod
    def default_config(self, problem: Problem, target: Target) -> Any:
        """Return a legal configuration that is reasonable for the problem."""
        ...

    @abstractmethod
    def estimate(self, problem: Problem, config: Any, target: Target) -> float:
        """Return the clock cycles that a call should take.

        The estimates of all templates that take a problem are compared: where nothing has been measured, the least
        is taken. On a CPU the cycles are those of one core for one image, on a GPU those of the busiest multiprocessor.
        """
        ...

    @abstractmethod
    def features(self, problem: Problem, config: Any, target: Target) -> Mapping[str, float]:
        """Return numbers that the tuner's cost model should know of a configuration on a target, besides its knobs.

        On a CPU "tasks" is the number of pieces that a configuration whose knob `parallel` is set shares out.
        """
        ...

    @abstractmethod
    def schedule(self, problem: Problem, config: Any, target: Target) -> Schedule:
        """Return the scheduled computation."""
        ...

    @abstractmethod
    def ablations(self, config: Any) -> Mapping[str, Any]:
        """Return the configuration without each of its optimizations in turn, by the name of the missing one."""
        ...


class SparseTemplate(Template, Protocol):
    """A template for weights that are compiled in, which can tell whether its kernel beats a dense one."""

    def pays(
        self, problem: Problem, config: Any, target: Target, weight_bytes: int, dense_cycles: Callable[[], float]
    ) -> bool:
        """Say whether the kernel should beat the dense one in a network.

        `weight_bytes` are those of all weights of the network; `dense_cycles` tells the estimate of the dense kernel.
        """
        ...


@dataclass(frozen=True)
class Selection:
    """A template, the configuration to use it with, and the reason in words."""

    template: Template
    config: Any
    reason: str
    name: str
    """The name of the template, such as "cuda/depthwise"."""

    @property
    def layouts(self) -> Layouts:
        """Return the layouts that the template takes, which is one for convolutions."""
        layouts = self.template.LAYOUTS
        assert isinstance(layouts, Layouts)
        return layouts

    @property
    def takes_strided_rows(self) -> bool:
        """Return whether the kernel can read and store operands that are `StridedRows` of a larger tensor."""
        test: Callable[[Any], bool] | None = getattr(self.template, "takes_strided_rows", None)
        return test is not None and test(self.config)
