"""Random convolutions of every kind that a workload may describe, small enough to try thousands of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import msgspec

from tvmconv.checking.draws import Draw
from tvmconv.dispatch import algorithms_for, algorithms_on, template_named
from tvmconv.dispatch.registry import directions_of
from tvmconv.problem import FORWARD, FusedProblem, Problem
from tvmconv.problem.activations import ACTIVATIONS
from tvmconv.problem.dtypes import FLOATS, NARROW, QUANTIZED, STORAGE_TYPES
from tvmconv.problem.epilogue import Epilogue
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import Activation, Padding
from tvmconv.problem.precision import DEFAULT, WORDS
from tvmconv.problem.workload import ConvWorkload
from tvmconv.schedules.open_sizes import least_planes
from tvmconv.schedules.space import ceil_to
from tvmconv.targets import backend_of, computes_with

if TYPE_CHECKING:
    import tvm

MOST_FLOPS = 2**26
MOST_ELEMENTS = 2**19
"""The largest number of elements of one operand, padding included.

Both limits bound the time that the reference takes.
"""

MOST_NONZEROS = 2**10
MOST_PLACES = 2**9
"""The largest number of input elements under a window, over all channels, for a weight that is compiled in.

`MOST_NONZEROS` limits the weight's non-zeros: all of this is unrolled.
"""

MOST_DRAWS, FAVOURED_DRAWS = 10_000, 400
"""The most convolutions that are drawn to find one that an algorithm takes: one that was asked for, or one that was
drawn, for which the target may have no instructions. One in a hundred is by the rarest, fewer with open sizes."""

SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.9, 0.95, 0.99, 1.0)

KINDS = *["depthwise"] * 2, *["groups"] * 2, *["one group"] * 3, "linear"
"""The kinds of convolutions, repeated in proportion to their shares."""

BLOCKS = (4, 8, 16)
"""The numbers of channels in a block, one for each length of a CPU's vectors."""

STORED, VECTORS = 4, 16
"""The number of output channels of a group that tensor cores store at once, and the number of channels that are whole
vectors of every type."""

UNITS = 1, 1, STORED, 2 * STORED
"""The numbers of which the channels of a group are multiples, input and output channels alike."""

INPUTS = (1, 4), (1, 80), (16, 160)
"""The ranges of the input channels of a group: some templates take few alone, and others many."""

PLAIN = (1, 1), (3, 3), (3, 3), (5, 5)
"""The kernels that are the only ones of some templates, with a stride and a dilation of 1."""

LAYOUTS = ("NHWC", "NCHW"), ("KRSC", "KCRS"), ("NHWC", "NCHW")
"""The layouts of x, w and the output, other than blocks of channels."""

CHANNELS_LAST = "NHWC", "KRSC", "NHWC"
"""The layouts of x, w and the output that half of the convolutions in these layouts have."""

CHOSEN: tuple[Activation, ...] = (
    ("clip", -0.5, 1.5), ("clip", None, 0.25), ("clip", 0.5, None), ("leaky_relu", -0.5), ("elu", 2.5)
)  # fmt: skip
"""Activations with parameters that are not the defaults."""

EVERY_ACTIVATION: tuple[Activation, ...] = (*(name for name in ACTIVATIONS if name != "clip"), *CHOSEN)


OPENED = ("batch",), ("batch",), ("batch", "height", "width"), ("height",), ("width",)
"""The sets of sizes that are left open together."""


class Trial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A convolution to try, with all settings: its JSON is enough to try it again."""

    workload: ConvWorkload
    algorithm: str
    knobs: dict[str, Any] | None
    """The knobs of the configuration; None for the default one."""
    operands: int
    """The seed of the operands."""
    nonfinite: bool = False
    """True if NaN and infinities are among the elements of x."""
    sparsity: float | None = None
    """The share of zeros in a weight that is compiled in; None for a kernel of any weight."""
    precision: str = DEFAULT
    """The word for how exact the result has to be, one of `tvmconv.problem.precision.WORDS`."""
    open_sizes: tuple[str, ...] = ()
    """The sizes that are known only when the kernel runs; it is tried with several of each."""
    direction: str = FORWARD
    """The result that the kernel computes, one of `tvmconv.problem.DIRECTIONS`."""

    @classmethod
    def of(
        cls, problem: Problem, algorithm: str, config: Any = None, operands: int = 0, nonfinite: bool = False
    ) -> Trial:
        """Return the trial of a problem by an algorithm in a configuration, None for the default one."""
        knobs = None if config is None else msgspec.to_builtins(config)
        sparsity, precision, open_sizes = problem.sparsity, problem.precision, problem.open_sizes
        how = operands, nonfinite, sparsity, precision, open_sizes, problem.direction
        return cls(problem.workload, algorithm, knobs, *how)

    @property
    def problem(self) -> Problem:
        """The problem that the kernel solves."""
        return Problem(self.workload, self.sparsity, self.precision, self.open_sizes, direction=self.direction)

    @property
    def workloads(self) -> tuple[ConvWorkload, ...]:
        """The workloads to try the kernel with: the trial's, or with open sizes that and others.

        Planes are as small as the kernel allows, or a little larger than the one that the configuration is chosen for.
        """
        if not self.open_sizes:
            return (self.workload,)
        least = {"batch": 1, **least_planes(self.workload)}

        def sized(factor: int, more: int) -> ConvWorkload:
            sizes = {name: max(least[name], factor * getattr(self.workload, name) + more) for name in self.open_sizes}
            return msgspec.structs.replace(self.workload, **sizes)

        return sized(0, 1), sized(1, 1), sized(1, 3)


def examples(target: tvm.target.Target, opened: bool = False, algorithm: str | None = None) -> list[Trial]:
    """Return trials of the examples that templates for a target have, in default configurations.

    With `opened` they are those that leave sizes open, and with an algorithm those of its template. Templates without
    examples have no trials, and examples of attention and gates, which are no convolutions, are left out.
    """
    folder = backend_of(target).templates
    return [
        Trial.of(problem, name)
        for name in algorithms_on(target)
        if algorithm in (None, name)
        for problem in getattr(template_named(f"{folder}/{name}"), "examples", ())
        if not isinstance(problem, FusedProblem)
        if name in algorithms_for(problem, target) and (problem.open_sizes or not opened)
    ]


def random_trial(
    draw: Draw, target: tvm.target.Target, operands: int, opened: bool = False, algorithm: str | None = None
) -> tuple[Trial, bool]:
    """Return a trial on a target, without knobs, and whether its configuration is the default.

    Some trials leave sizes open, and all of them do with `opened`. With an algorithm all are by that one; raises
    `InvalidArgumentError` where it takes none of many. Without one, half of them are by an algorithm that is drawn
    first, as some algorithms take few of all convolutions.
    """
    favoured, patience = algorithm, MOST_DRAWS
    if algorithm is None and draw.chance(1 / 2):
        favoured, patience = draw.by_name(algorithms_on(target)), FAVOURED_DRAWS
    direction, *_ = (FORWARD,) if favoured is None else _directions(favoured, target)
    for turn in range(MOST_DRAWS):
        if direction == FORWARD:
            trial, is_default = _closed_trial(draw, target, operands, favoured)
        else:
            trial, is_default = _gradient_trial(draw, target, operands, favoured, direction)
        if favoured not in (None, trial.algorithm) and turn < patience:
            continue
        with_open = msgspec.structs.replace(trial, open_sizes=draw.of(OPENED))
        if (draw.chance(0.3) or opened) and trial.algorithm in algorithms_for(with_open.problem, target):
            return with_open, is_default
        if not opened:
            return trial, is_default
    raise InvalidArgumentError("algorithm", algorithm, f"one that takes random convolutions on {target.kind.name}")


def _closed_trial(draw: Draw, target: tvm.target.Target, operands: int, wanted: str | None) -> tuple[Trial, bool]:
    """Return a trial with all sizes known, by the algorithm `wanted` if that takes the workload."""
    dtypes = _dtypes_of(wanted, target)
    while (workload := _attempt(draw, dtypes)) is None or not computes_with(target, workload.storage):
        pass
    is_default, nonfinite = draw.chance(1 / 3), draw.chance(0.1)
    takes_sparse = wanted in (None, "sparse") and workload.in_channels * prod(workload.kernel) <= MOST_PLACES
    if takes_sparse and draw.chance(0.3):
        sparsity = max(draw.of(SPARSITIES), 1 - MOST_NONZEROS / prod(workload.w_shape))
        # A product with a zero is left out, also with NaN.
        return Trial(workload, "sparse", None, operands, sparsity=round(sparsity, 4)), is_default
    precision = DEFAULT
    if workload.dtype not in NARROW:  # no other precision promises where NaN and infinities come out
        precision = "strict" if nonfinite else draw.of(WORDS)

    def takers(workload: ConvWorkload) -> tuple[str, ...]:
        found = algorithms_for(Problem(workload, precision=precision), target)
        return (wanted,) if wanted in found else found

    if draw.chance(0.25) and takers(other := _quantized(draw, workload)):
        workload = other
    algorithm = draw.by_name(takers(workload))
    if draw.chance(0.2):
        workload = _in_blocks(draw, workload, takers)
        algorithm = draw.by_name(takers(workload))
    elif (draw.chance(0.6) or wanted not in (None, algorithm)) and takers(other := _in_any_layout(draw, workload)):
        workload, algorithm = other, draw.by_name(takers(other))
    if workload.dtype in QUANTIZED:
        nonfinite, precision = False, DEFAULT
    if algorithm == "winograd":  # all outputs of a tile have its NaN
        nonfinite = False
    return Trial(workload, algorithm, None, operands, nonfinite, precision=precision), is_default


def _directions(algorithm: str, target: tvm.target.Target) -> Sequence[str]:
    """Return the directions that an algorithm takes; forward where the target has no such algorithm."""
    if algorithm not in algorithms_on(target):
        return (FORWARD,)
    return directions_of(template_named(f"{backend_of(target).templates}/{algorithm}"))


def _gradient_trial(
    draw: Draw, target: tvm.target.Target, operands: int, wanted: str | None, direction: str
) -> tuple[Trial, bool]:
    """Return a trial of a gradient with all sizes known, by the algorithm `wanted` if that takes the workload."""
    while (workload := _attempt(draw, FLOATS)) is None or not (
        workload.is_depthwise and computes_with(target, workload.storage)
    ):
        pass
    workload = workload.without_epilogue()
    known = [
        (each, algorithm)
        for each in (workload, _in_any_layout(draw, workload))
        for algorithm in algorithms_for(Problem(each, direction=direction), target)
    ]
    algorithms = [algorithm for _, algorithm in known]
    algorithm = wanted if wanted in algorithms else draw.by_name(algorithms)
    workload = draw.of([each for each, other in known if other == algorithm])
    return Trial(workload, algorithm, None, operands, direction=direction), draw.chance(1 / 3)


def _dtypes_of(algorithm: str | None, target: tvm.target.Target) -> Sequence[str]:
    """Return the floating-point types that an algorithm takes, or all types where it takes none, or there is none."""
    if algorithm not in algorithms_on(target):
        return FLOATS
    known = template_named(f"{backend_of(target).templates}/{algorithm}").LAYOUTS.dtypes
    return [dtype for dtype in FLOATS if dtype in known] or FLOATS


def _attempt(draw: Draw, dtypes: Sequence[str]) -> ConvWorkload | None:
    """Return a random workload of one of the types.

    None where the kernel does not fit the padded image or a check would take too long.
    """
    kind, unit, inputs = draw.of(KINDS), draw.of(UNITS), draw.logarithmic(*draw.of(INPUTS))
    groups, inputs, outputs = 1, ceil_to(inputs, unit), ceil_to(draw.logarithmic(1, 80), unit)
    size = draw.logarithmic(1, 64), draw.logarithmic(1, 64)
    if draw.chance(0.1):
        size = draw.of([(1, draw.logarithmic(1, 400)), (draw.logarithmic(1, 400), 1), (1, 1)])
    kernel, stride, dilation = draw.of(PLAIN), (1, 1), (1, 1)
    if draw.chance(0.5):
        kernel = _kernel(draw)
        stride = draw.pair(1, 4) if draw.chance(0.5) else stride
        dilation = draw.pair(1, 5) if draw.chance(0.3) else dilation
    padding = _padding(draw, kernel, dilation)
    batch = draw.logarithmic(1, 33) if draw.chance(0.3) else 1
    if kind == "depthwise":
        groups, inputs, outputs = draw.logarithmic(1, 64), 1, draw.logarithmic(1, 4)
    elif kind == "groups":
        groups = draw.of((2, 3, 4, 8))
    elif kind == "linear":
        size, kernel, padding = (1, 1), (1, 1), "VALID"
        batch = ceil_to(draw.logarithmic(1, 300), draw.of((1, STORED)))
    try:
        workload = ConvWorkload.conv2d(
            (batch, groups * inputs, *size),
            (groups * outputs, inputs, *kernel),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=groups,
            dtype=draw.of(dtypes),
            scale=draw.chance(0.3),
            shift=draw.chance(0.4),
            residual=draw.chance(0.2),
            activation=draw.by_name(EVERY_ACTIVATION) if draw.chance(0.4) else None,
        )
    except InvalidArgumentError:
        return None
    return workload if _is_small(workload) else None


def _in_blocks(draw: Draw, workload: ConvWorkload, takers: Callable[[ConvWorkload], tuple[str, ...]]) -> ConvWorkload:
    """Return the workload with whole blocks of channels, where a template takes that."""
    if not (workload.is_depthwise or workload.groups == 1):
        return workload
    read, written = draw.of((1, *BLOCKS)), draw.of((1, *BLOCKS))
    if workload.is_depthwise:
        written = read
    inputs, outputs = (
        ceil_to(channels, block) for channels, block in ((workload.in_channels, read), (workload.out_channels, written))
    )
    blocked = msgspec.structs.replace(
        workload,
        in_channels=inputs,
        out_channels=inputs * workload.multiplier if workload.is_depthwise else outputs,
        groups=inputs if workload.is_depthwise else 1,
        layout=f"NCHW{read}c" if read > 1 else "NCHW",
        out_layout=f"NCHW{written}c" if written > 1 else "NCHW",
    )
    return blocked if takers(blocked) and _is_small(blocked) else workload


def _in_any_layout(draw: Draw, workload: ConvWorkload) -> ConvWorkload:
    """Return the workload in random layouts, its output channels whole stores of tensor cores.

    A depthwise workload gets NHWC, its channels whole vectors. The workload is unchanged if it would be large.
    """
    if workload.is_depthwise:
        channels = ceil_to(workload.in_channels, VECTORS)
        sizes = {"in_channels": channels, "groups": channels, "out_channels": channels * workload.multiplier}
        other = msgspec.structs.replace(workload, layout="NHWC", out_layout="NHWC", **sizes)
        return other if _is_small(other) else workload
    layout, w_layout, out_layout = CHANNELS_LAST if draw.chance(0.5) else (draw.of(names) for names in LAYOUTS)
    other = msgspec.structs.replace(
        workload,
        out_channels=ceil_to(workload.multiplier, STORED) * workload.groups,
        layout=layout,
        w_layout=w_layout,
        out_layout=out_layout,
    )
    return other if _is_small(other) else workload


def _quantized(draw: Draw, workload: ConvWorkload) -> ConvWorkload:
    """Return the workload for integers, with an output of a random type."""
    dtype, out_dtype = draw.of(QUANTIZED), draw.of(tuple(STORAGE_TYPES))
    epilogue = Epilogue() if out_dtype == "int32" else msgspec.structs.replace(workload.epilogue, scale=True)
    if out_dtype in QUANTIZED:
        epilogue = msgspec.structs.replace(
            epilogue, zero_point=_zero_point(draw, out_dtype), factor=draw.of((1.0, 1.0, 0.3, 2.5))
        )
    return msgspec.structs.replace(
        workload, dtype=dtype, out_dtype=out_dtype, x_zero_point=_zero_point(draw, dtype), epilogue=epilogue
    )


def _zero_point(draw: Draw, dtype: str) -> int:
    return draw.uniform(*(STORAGE_TYPES[dtype].bounds or (0, 0))) if draw.chance(0.5) else 0


def _is_small(workload: ConvWorkload) -> bool:
    padded = prod(workload.padded_input) * workload.batch * workload.in_channels
    largest = max(padded, prod(workload.output_shape), prod(workload.w_shape))
    return workload.flops <= MOST_FLOPS and largest <= MOST_ELEMENTS


def _kernel(draw: Draw) -> tuple[int, int]:
    if draw.chance(0.5):
        side = draw.of((1, 3, 3, 5, 7))
        return side, side
    most = 13 if draw.chance(0.2) else 6
    return draw.pair(1, most)


def _padding(draw: Draw, kernel: tuple[int, int], dilation: tuple[int, int]) -> Padding:
    """Return padding in any form; it may reach past the kernel, or make a kernel fit that is larger than the image."""
    wide = tuple((side - 1) * step + 2 for side, step in zip(kernel, dilation, strict=True))
    choices: tuple[Padding, ...] = (
        "SAME",
        "SAME",
        "VALID",
        draw.uniform(0, 3),
        draw.pair(0, 3),
        tuple(draw.uniform(0, wide[side % 2]) for side in range(4)),
    )
    return draw.of(choices)
