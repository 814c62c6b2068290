"""The problem that a kernel solves: the key of records, and the argument of every template."""

from __future__ import annotations

from math import prod
from typing import Literal, get_args

import msgspec

from .dtypes import NARROW
from .epilogue import Epilogue
from .errors import InvalidArgumentError
from .fused import AnyFused
from .precision import DEFAULT, PRECISIONS, WORDS, Precision, require_precision
from .workload import ConvWorkload, Operands

OpenAxis = Literal["batch", "height", "width"]

OPEN_SIZES: tuple[str, ...] = get_args(OpenAxis)
"""The names of the sizes of a workload that can be open."""

FORWARD = "forward"
DIRECTIONS = (FORWARD, "input_gradient", "weight_gradient")
"""The results that a kernel may compute: a convolution, or its gradient by its input or by its weight."""

IMAGES = {FORWARD: ("x", "residual", "output"), "input_gradient": ("dy", "output"), "weight_gradient": ("dy", "x")}
"""The operands of a kernel that are images, and its output if that is one, by direction."""

ASSUMED_BATCH = 1
"""The batch that kernels are chosen for where it is known only when they run.

Work that keeps the threads of a CPU busy for one image does so for more.
"""

ASSUMED_LENGTHS = (64, 1024)
"""The widths that kernels are chosen for where planes are rows whose width is known only when they run.

By `python benchmarks/thresholds.py lengths` a call with the kernel for 64 takes at most 1.1 times as long as one with a
kernel for its length, from 32 to 256 columns; so does a call with the kernel for 1024, which uses all threads, above
that. Each assumed width is compiled into a separate kernel.
"""

LEAST_LENGTH = 16
"""The width below which each width has a separate kernel: one with vectors of channels takes 6 µs for 24 columns of
256."""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """A workload, the sparsity of its weight, the precision, and the direction; each has one best configuration.

    Raises `InvalidArgumentError` for a precision that is none of `WORDS`, for "strict" with narrow storage, whose
    products tensor cores may add up, and for a direction that is none of `DIRECTIONS`. A gradient is that of a
    convolution without an epilogue, in one dtype, whose weight is an operand.
    """

    workload: ConvWorkload
    sparsity: float | None = None
    """The share of zeros in the weight, which is compiled in; None for a dense kernel, which has it as an operand."""
    precision: str = DEFAULT
    """The word for what is promised of results, one of `WORDS`.

    One computation has one problem: the word is "float32", whichever was given, where it makes no difference. Numbers
    in float16 and bfloat16 are TF32 numbers too, and are summed in float32; integers have exact sums; sparse kernels
    use multiply-adds alone.
    """

    open_sizes: tuple[str, ...] = ()
    """The names of the sizes that are known only when the kernel runs, of `OPEN_SIZES`.

    Instead of them the workload has the sizes that the configuration is chosen for.
    """

    mirrored: bool = False
    """True if each filter is taken with its rows and its columns in the other order, as in the gradient by the input.

    It makes no difference to what is fast: configurations are those of the convolution.
    """

    channels_last: bool = False
    """True if operands in NHWC, and a weight in KRSC, are given in the shapes of NCHW and KCRS.

    Tensors of torch in channels_last have these shapes. It makes no difference to what is fast.
    """

    constant_weight: bool = False
    """True if the weight is laid out before the kernel runs, as in a network: calls do not move its bytes then."""

    direction: str = FORWARD
    """The result that the kernel computes, one of `DIRECTIONS`."""

    def __post_init__(self) -> None:
        require_precision(self.precision)
        self._require_direction()
        if not set(OPEN_SIZES).issuperset(self.open_sizes):
            raise InvalidArgumentError("open_sizes", self.open_sizes, f"names of {', '.join(OPEN_SIZES)}")
        dtype = self.workload.dtype
        if dtype in NARROW and self.precision == "strict" and self.sparsity is None:
            others = " or ".join(word for word in WORDS if word != "strict")
            raise InvalidArgumentError("precision", self.precision, f"{others} for x in {dtype}: strict is for float32")
        if not self._has_words:
            msgspec.structs.force_setattr(self, "precision", DEFAULT)

    def _require_direction(self) -> None:
        if self.direction not in DIRECTIONS:
            raise InvalidArgumentError("direction", self.direction, f"one of {', '.join(DIRECTIONS)}")
        plain = self.sparsity is None and self.workload.epilogue == Epilogue()
        if self.is_gradient and not (plain and self.workload.out_dtype is msgspec.UNSET):
            expected = f"{FORWARD} for a sparse weight, an epilogue, or an output of another dtype"
            raise InvalidArgumentError("direction", self.direction, expected)

    @property
    def is_gradient(self) -> bool:
        """True if the kernel computes a gradient."""
        return self.direction != FORWARD

    @property
    def operands(self) -> Operands:
        """The shape in memory and dtype of each operand of the kernel, in order; the last one is the output.

        Those of a convolution are x, w, what its epilogue has, and the output; of a gradient dy, the gradient of that,
        with w or with x, and the gradient by the other one of these.
        """
        return self.operands_of(self.workload)

    def operands_of(self, workload: ConvWorkload) -> Operands:
        """Return `operands` for a workload of other sizes or layouts."""
        forward = workload.operands
        if self.direction == "input_gradient":
            return {"dy": forward["output"], "w": forward["w"], "output": forward["x"]}
        if self.direction == "weight_gradient":
            return {"dy": forward["output"], "x": forward["x"], "output": forward["w"]}
        return forward

    @property
    def as_convolution(self) -> Problem:
        """The convolution of dy that computes a gradient by the input, with mirrored taps; else the problem itself.

        There is one where the stride is 1 and each channel has one output; its padding is such that windows reach all
        outputs that an element was read for.
        """
        workload = self.workload
        padding = [size - 1 - side for size, side in zip(workload.window * 2, workload.padding, strict=True)]
        is_one = workload.is_depthwise and workload.stride == (1, 1) and workload.multiplier == 1 and min(padding) >= 0
        if self.direction != "input_gradient" or not is_one:
            return self
        height, width = workload.output_size
        of_dy = msgspec.structs.replace(workload, height=height, width=width, padding=tuple(padding))
        return msgspec.structs.replace(self, workload=of_dy, direction=FORWARD, mirrored=True)

    @property
    def terms(self) -> int:
        """The number of products in a sum, at most."""
        workload = self.workload
        if self.direction == "input_gradient":
            return workload.multiplier * prod(workload.kernel)
        if self.direction == "weight_gradient":
            return workload.batch * prod(workload.output_size)
        return workload.terms

    @property
    def _has_words(self) -> bool:
        """True where the precision makes a difference."""
        return self.workload.dtype == "float32" and self.sparsity is None

    @property
    def promise(self) -> Precision:
        """The row of the precision."""
        return PRECISIONS[self.precision]

    @property
    def in_other_words(self) -> list[Problem]:
        """The problem with each other precision, the stricter ones first; none where precision makes no difference."""
        if not self._has_words:
            return []
        words = dict.fromkeys((*self.promise.served_by, *WORDS))
        return [msgspec.structs.replace(self, precision=word) for word in words if word != self.precision]

    @property
    def caller_workload(self) -> ConvWorkload:
        """The workload with operands in the shapes in which callers pass them."""
        return self.workload.in_nchw() if self.channels_last else self.workload

    @property
    def in_channels_last(self) -> tuple[str, ...]:
        """The names of the operands, and "output", that are tensors of torch in channels_last."""
        if not self.channels_last:
            return ()
        return *IMAGES[self.direction], *(("w",) if self.workload.w_layout == "KRSC" else ())

    @property
    def has_open_planes(self) -> bool:
        """True if the height or the width is known only when the kernel runs."""
        return not {"height", "width"}.isdisjoint(self.open_sizes)

    @property
    def density(self) -> float:
        """The share of non-zeros in the weight; 1 for a dense kernel, which takes every weight as one."""
        return 1.0 if self.sparsity is None else 1 - self.sparsity

    def with_any_batch(self) -> Problem:
        """Return the same problem with an open batch; the configuration is chosen for `ASSUMED_BATCH`."""
        workload = msgspec.structs.replace(self.workload, batch=ASSUMED_BATCH)
        return msgspec.structs.replace(self, workload=workload, open_sizes=("batch",))

    def with_any_length(self) -> Problem | None:
        """Return the same problem of rows, planes of one row, with open batch and width; None for other problems.

        The configuration is chosen for one of `ASSUMED_LENGTHS`: the first below four times its width.
        """
        workload = self.workload
        is_of_rows = self.is_depthwise and workload.is_in_nchw and workload.height == workload.window[0] == 1
        if self.is_gradient or not is_of_rows or workload.width < LEAST_LENGTH:
            return None
        short, long = ASSUMED_LENGTHS
        width = short if workload.width < 4 * short else long
        if width + workload.padding[1] + workload.padding[3] < workload.window[1]:
            return None
        assumed = msgspec.structs.replace(workload, batch=ASSUMED_BATCH, width=width)
        return msgspec.structs.replace(self, workload=assumed, open_sizes=("batch", "width"))

    @property
    def is_depthwise(self) -> bool:
        """True if the weight is an operand, and each output channel reads one input channel."""
        return self.sparsity is None and self.workload.is_depthwise

    @property
    def is_dense(self) -> bool:
        """True if the weight is an operand, and output channels read several input channels."""
        return self.sparsity is None and not self.workload.is_depthwise

    def __str__(self) -> str:
        zeros = "" if self.sparsity is None else f", {100 * self.sparsity:g}% zeros"
        word = "" if self.precision == DEFAULT else f", precision {self.precision}"
        sizes = "".join(f", any {name}" for name in self.open_sizes)
        order = ", taps mirrored" if self.mirrored else ""
        memory = ", given in channels_last" if self.channels_last else ""
        direction = f", {self.direction.replace('_', ' ')}" if self.is_gradient else ""
        return f"{self.workload}{direction}{zeros}{word}{sizes}{order}{memory}"

    def to_json(self) -> str:
        """Return one line of JSON, for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> Problem:
        """Return the problem that `to_json` wrote."""
        kind = FusedProblem if msgspec.json.decode(text, type=_Tagged).workload.type else Problem
        return msgspec.json.decode(text, type=kind)


class FusedProblem(Problem, frozen=True, omit_defaults=True):
    """The problem of a kernel that computes several layers, such as attention or a gate.

    Its workload has less than a convolution's: `Template.LAYOUTS` tells which kind of workload a template takes.
    """

    workload: AnyFused  # type: ignore[assignment]

    def _require_direction(self) -> None:
        if self.is_gradient:
            raise InvalidArgumentError("direction", self.direction, f"{FORWARD} for several layers in one kernel")

    @property
    def _has_words(self) -> bool:
        return self.workload.HAS_WORDS and super()._has_words

    @property
    def as_convolution(self) -> Problem:
        return self

    @property
    def is_depthwise(self) -> bool:
        return False

    @property
    def is_dense(self) -> bool:
        return False

    def with_any_batch(self) -> FusedProblem:
        workload = self.workload.with_layers(lambda layer: msgspec.structs.replace(layer, batch=ASSUMED_BATCH))
        return msgspec.structs.replace(self, workload=workload, open_sizes=("batch",))


Workload = ConvWorkload | AnyFused
"""The workload of a kernel, of any kind: it has operands, FLOPs and a description in words."""


def workload_from(text: str) -> Workload:
    """Return the workload that `to_json` wrote of any kind; raise `InvalidArgumentError` for other text."""
    try:
        if not msgspec.json.decode(text, type=_Tag).type:
            return ConvWorkload.from_json(text)
        workload: Workload = msgspec.json.decode(text, type=AnyFused)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise InvalidArgumentError("workload", text, f"a workload in JSON ({error})") from None
    return workload


def problem_of(
    workload: Workload, sparsity: float | None = None, precision: str = DEFAULT, direction: str = FORWARD
) -> Problem:
    """Return the problem of a workload of any kind."""
    if isinstance(workload, ConvWorkload):
        return Problem(workload, sparsity, precision, direction=direction)
    return FusedProblem(workload, sparsity, precision, direction=direction)


class _Tag(msgspec.Struct):
    type: str = ""
    """The tag of the workload of several layers; none for a convolution."""


class _Tagged(msgspec.Struct):
    workload: _Tag
