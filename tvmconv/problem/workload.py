"""The description of one convolution, without TVM.

A `ConvWorkload` is the key of everything else: it chooses the computation, the schedule, the cached kernel and the
tuning record. Two descriptions of the same computation are equal: padding is stored as four numbers whatever way it
was given, and so is an activation: relu, relu6 and clip are bounds, whatever name they were given by.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod

import msgspec

from .dtypes import STORAGE_TYPES, DType, OutDType, StorageType
from .epilogue import Epilogue
from .errors import InvalidArgumentError
from .layout import WEIGHT_LAYOUTS, Layout, data_layout, require_layout, weight_layout
from .parameters import (
    Activation,
    Padding,
    PlainLayout,
    is_integer,
    pair,
    require_positive,
    require_rank,
    resolve_padding,
)
from .quantization import OutputType, ZeroPoint, resolve_quantization

MAX_ELEMENTS = 2**30
"""The largest number of elements of a tensor: kernels index with 32-bit integers and round sizes up to whole tiles."""

Operands = dict[str, tuple[tuple[int, ...], str]]
"""The shape in memory and dtype of each operand of a kernel, by name, in order; the last one is the output."""

MANY_FILTERS = 16
"""The number of filters from which vectors of them pay where there is one input channel.

µs of a call on a Xeon with AMX, 2 threads, as a depthwise and as a dense convolution: 16 filters of 40 with stride 20
along 16,000 samples 75 and 20, 402 of 400 with stride 160 along 48,000 samples 6090 and 319, 16 of 3x3 with stride 2 in
an image of 224x224 97 and 64, with stride 1 in one of 112x112 52 and 50: `python benchmarks/thresholds.py one-channel`.
"""


def has_many_filters(filters: int, kernel: tuple[int, int], stride: tuple[int, int]) -> bool:
    """Return whether vectors of filters pay for a single input channel: for many filters of a row or with a stride."""
    rows, columns = kernel
    return filters >= MANY_FILTERS and columns > 1 and (rows == 1 or stride[1] > 1)


class ConvWorkload(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A 2-D convolution: shapes in elements, padding as (top, left, bottom, right).

    Build one with `ConvWorkload.depthwise` or `conv2d`, or from JSON; the constructor takes the stored form. A workload
    that makes no sense raises `InvalidArgumentError`.

    >>> from tvmconv import ConvWorkload
    >>> workload = ConvWorkload.conv2d((1, 64, 56, 56), (128, 64, 3, 3), stride=2, padding=1, activation="relu")
    >>> print(workload)
    conv2d 1x64x56x56 -> 128, 3x3 stride 2x2 padding 1,1,1,1 + relu
    >>> workload.output_shape, workload.flops
    ((1, 128, 28, 28), 115605504)
    >>> ConvWorkload.from_json(workload.to_json()) == workload
    True
    """

    batch: int
    in_channels: int
    height: int
    width: int
    out_channels: int
    kernel: tuple[int, int]
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dense: bool | msgspec.UnsetType = msgspec.UNSET
    """True for one input channel that is convolved as in a dense layer: kernels have vectors of filters for it.

    Unset where it is not True, and for several channels, whatever was given.
    """
    layout: str = "NCHW"
    """The layout of x in memory: "NCHW", "NHWC", or such as "NCHW8c", (N, C / 8, H, W, 8): its channels in blocks."""
    w_layout: str = "KCRS"
    """The layout of w in memory: "KCRS", or for convolutions that are not depthwise "KRSC"."""
    out_layout: str = "NCHW"
    """The layout of the output and the residual in memory."""
    dtype: str = "float32"
    """The type of x. The weight and, where x is of floating-point numbers, the output and the residual have it too."""
    epilogue: Epilogue = Epilogue()
    out_dtype: OutputType = msgspec.UNSET
    """The type of the output and the residual where it is another: of integers "int32" unless given, or any other."""
    x_zero_point: ZeroPoint = msgspec.UNSET
    """The integer that stands for zero in x, and that padding has; unset where it is 0."""

    @classmethod
    def depthwise(
        cls,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = "SAME",
        dilation: int | Sequence[int] = 1,
        dtype: DType | str = "float32",
        scale: bool = False,
        shift: bool = False,
        residual: bool = False,
        activation: Activation = None,
    ) -> ConvWorkload:
        """Return the depthwise convolution of x (N, C, H, W) with w (C, M, R, S), with C * M output channels.

        `padding` is "SAME" (what ONNX calls SAME_UPPER, and TensorFlow SAME: as many outputs as ceil(input / stride),
        the odd element of padding at the bottom and right), "VALID", a number, a pair (vertical, horizontal), or
        (top, left, bottom, right).

        `activation` is None, a name such as "relu" or "gelu", or a name with parameters: ("clip", low, high), where
        None is no bound, or ("leaky_relu", 0.1). docs/networks.md lists the names, and `tvmconv.problem.activations`
        the parameters, whose defaults are torch's. Each is torch's function of that name, of NaN and infinities too,
        computed in float32.
        """
        require_rank("x", x_shape, 4, "(N, C, H, W)")
        require_rank("w", w_shape, 4, "(C, M, R, S)")
        channels, (w_channels, multiplier, *kernel) = x_shape[1], w_shape
        if w_channels != channels:
            raise InvalidArgumentError(
                "w", tuple(w_shape), f"{channels} channels first, as many as x {tuple(x_shape)} has: (C, M, R, S)"
            )
        workload = cls.conv2d(
            x_shape,
            (channels * multiplier, 1, *kernel),
            stride=stride,
            padding=padding,
            dilation=dilation,
            groups=channels,
            dtype=dtype,
            scale=scale,
            shift=shift,
            residual=residual,
            activation=activation,
        )
        return msgspec.structs.replace(workload, dense=msgspec.UNSET)

    @classmethod
    def conv2d(
        cls,
        x_shape: Sequence[int],
        w_shape: Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = "SAME",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        dtype: DType | str = "float32",
        scale: bool = False,
        shift: bool = False,
        residual: bool = False,
        activation: Activation = None,
        layout: PlainLayout = "NCHW",
        out_dtype: OutDType | str | None = None,
        x_zero_point: int = 0,
        out_zero_point: int = 0,
    ) -> ConvWorkload:
        """Return the convolution of x (N, C, H, W) with w (K, C / groups, R, S); the rest is as for `depthwise`.

        With as many groups as input channels it is the depthwise one, whose weight is w as (C, K / C, R, S), except
        for one channel with many filters of a row or with a stride (`dense`).

        With the layout "NHWC" the shapes are (N, H, W, C) and (K, R, S, C / groups), as all operands then lie in
        memory, the output and the residual too; not for depthwise convolutions.

        With the dtype "int8" or "uint8" w is of int8, sums of `(x - x_zero_point) * w` are exact, and the output is
        "int32", these sums, without an epilogue, or any other `out_dtype`. What comes behind the sums is in float32,
        and for an "int8" or "uint8" output rounded to the nearest integer, of two the even one, plus `out_zero_point`.
        """
        if layout not in ("NCHW", "NHWC"):
            raise InvalidArgumentError("layout", layout, "'NCHW' or 'NHWC'")
        is_nhwc = layout == "NHWC"
        meaning = "(K, R, S, C / groups)" if is_nhwc else "(K, C / groups, R, S)"
        require_rank("x", x_shape, 4, "(N, H, W, C)" if is_nhwc else "(N, C, H, W)")
        require_rank("w", w_shape, 4, meaning)
        batch, channels, height, width = (int(n) for n in data_layout(layout).logical(*x_shape))
        out_channels, w_channels, r, s = (
            int(n) for n in weight_layout("KRSC" if is_nhwc else "KCRS").logical(*w_shape)
        )
        if not is_integer(groups) or w_channels * groups != channels:
            raise InvalidArgumentError(
                "w", tuple(w_shape), f"{meaning} where x {tuple(x_shape)} has C, and groups is {groups!r}"
            )
        if is_nhwc and groups == channels:
            raise InvalidArgumentError("layout", layout, "'NCHW' for a convolution of each channel by itself")
        strides, dilations = pair("stride", stride), pair("dilation", dilation)
        workload = cls(
            batch=batch,
            in_channels=channels,
            height=height,
            width=width,
            out_channels=out_channels,
            kernel=(r, s),
            stride=strides,
            padding=resolve_padding(padding, (height, width), (r, s), strides, dilations),
            dilation=dilations,
            groups=int(groups),
            dense=has_many_filters(out_channels, (r, s), strides),
            dtype=dtype,
            epilogue=msgspec.structs.replace(
                Epilogue.of(activation, scale, shift, residual), zero_point=out_zero_point
            ),
            out_dtype=msgspec.UNSET if out_dtype is None else out_dtype,
            x_zero_point=x_zero_point,
        )
        return workload.in_nhwc() if is_nhwc else workload

    @classmethod
    def from_json(cls, text: str | bytes) -> ConvWorkload:
        """Return the workload that `to_json` wrote."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise InvalidArgumentError("workload", text, f"a ConvWorkload in JSON ({error})") from None

    def to_json(self) -> str:
        """Return one line of JSON with every field."""
        return msgspec.json.encode(self).decode()

    def __post_init__(self) -> None:
        for name in ("batch", "in_channels", "height", "width", "out_channels", "groups"):
            require_positive(name, getattr(self, name))
        for name in ("kernel", "stride", "dilation"):
            pair = getattr(self, name)
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise InvalidArgumentError(name, pair, "a pair of integers")
            for value in pair:
                require_positive(name, value)
        if max(self.dilation) > MAX_ELEMENTS:  # a kernel of one element fits with any
            raise InvalidArgumentError("dilation", self.dilation, f"integers of at most {MAX_ELEMENTS}")
        four = isinstance(self.padding, tuple) and len(self.padding) == 4
        if not four or not all(is_integer(value) and value >= 0 for value in self.padding):
            raise InvalidArgumentError("padding", self.padding, "four integers of 0 or more")
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise InvalidArgumentError(
                "groups", self.groups, f"a divisor of {self.in_channels} input and {self.out_channels} output channels"
            )
        for name, channels in (("layout", self.in_channels), ("out_layout", self.out_channels)):
            require_layout(name, getattr(self, name), channels)
        if self.dense is not True or self.in_channels > 1:
            msgspec.structs.force_setattr(self, "dense", msgspec.UNSET)
        known = WEIGHT_LAYOUTS[:1] if self.is_depthwise else WEIGHT_LAYOUTS
        if self.w_layout not in known:
            raise InvalidArgumentError("w_layout", self.w_layout, " or ".join(known))
        types = resolve_quantization(self.dtype, self.out_dtype, self.x_zero_point, self.epilogue, self.terms)
        for name, value in zip(("out_dtype", "x_zero_point"), types, strict=True):
            msgspec.structs.force_setattr(self, name, value)
        window, padded = self.window, self.padded_input
        if window[0] > padded[0] or window[1] > padded[1]:
            raise InvalidArgumentError(
                "kernel",
                self.kernel,
                f"one that, dilated to {window[0]}x{window[1]}, fits the padded input of {padded[0]}x{padded[1]}",
            )
        for name, shape in self.tensors.items():
            if prod(shape) > MAX_ELEMENTS:
                raise InvalidArgumentError(name, shape, f"a tensor of at most {MAX_ELEMENTS} elements")

    def without_epilogue(self) -> ConvWorkload:
        """Return the workload for the sums alone; for integers those of x without its zero point."""
        plain = msgspec.structs.replace(self, epilogue=Epilogue(), x_zero_point=msgspec.UNSET)
        return plain if self.storage.bounds is None else msgspec.structs.replace(plain, out_dtype="int32")

    def without_scale(self) -> ConvWorkload:
        """Return the workload without a scale, for a weight that is multiplied by it."""
        return msgspec.structs.replace(self, epilogue=msgspec.structs.replace(self.epilogue, scale=False))

    def in_nchw(self) -> ConvWorkload:
        """Return the workload with operands in their logical order: NCHW, and a weight in KCRS."""
        return msgspec.structs.replace(self, layout="NCHW", w_layout="KCRS", out_layout="NCHW")

    def in_nhwc(self) -> ConvWorkload:
        """Return the workload with operands in NHWC, and a weight in KRSC.

        A depthwise weight with one output for each channel lies in memory as in NCHW.
        """
        w_layout = "KCRS" if self.is_depthwise else "KRSC"
        return msgspec.structs.replace(self, layout="NHWC", w_layout=w_layout, out_layout="NHWC")

    @property
    def layouts(self) -> str:
        """The layouts of x and of the output in words, and that of w if it is not KCRS."""
        weight = f" with {self.w_layout}" if self.w_layout != "KCRS" else ""
        return f"{self.layout}{weight} to {self.out_layout}"

    @property
    def is_in_nchw(self) -> bool:
        """True if all operands are in their logical order."""
        return self.layout == self.out_layout == "NCHW" and self.w_layout == "KCRS"

    @property
    def x_layout(self) -> Layout:
        """The order of the dimensions of x."""
        return data_layout(self.layout)

    @property
    def weight_layout(self) -> Layout:
        """The order of the dimensions of w."""
        return weight_layout(self.w_layout)

    @property
    def output_layout(self) -> Layout:
        """The order of the dimensions of the output and the residual."""
        return data_layout(self.out_layout)

    @cached_property
    def is_depthwise(self) -> bool:
        """True if each input channel is convolved alone, except a single one that is `dense`."""
        return self.groups == self.in_channels and self.dense is not True

    @cached_property
    def is_linear(self) -> bool:
        """True if images and kernels are of one pixel, so that each image is a row of channels."""
        return self.groups == 1 and prod((self.height, self.width, *self.kernel)) == 1 and not any(self.padding)

    @cached_property
    def multiplier(self) -> int:
        """The number of output channels for each group."""
        return self.out_channels // self.groups

    @cached_property
    def window(self) -> tuple[int, int]:
        """The rows and columns that the dilated kernel spans."""
        (r, s), (dh, dw) = self.kernel, self.dilation
        return (r - 1) * dh + 1, (s - 1) * dw + 1

    @cached_property
    def padded_input(self) -> tuple[int, int]:
        """The height and width of the input with its padding."""
        top, left, bottom, right = self.padding
        return self.height + top + bottom, self.width + left + right

    @cached_property
    def output_size(self) -> tuple[int, int]:
        """The height and width of the output."""
        (height, width), (rows, columns), (sh, sw) = self.padded_input, self.window, self.stride
        return (height - rows) // sh + 1, (width - columns) // sw + 1

    def read_by(self, outputs: tuple[int, int]) -> tuple[int, int]:
        """Return the rows and columns of the padded input that `outputs`, rows and columns of the output, read."""
        (rows, columns), (sh, sw), window = outputs, self.stride, self.window
        return (rows - 1) * sh + window[0], (columns - 1) * sw + window[1]

    @cached_property
    def x_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.in_channels, self.height, self.width

    @cached_property
    def w_shape(self) -> tuple[int, int, int, int]:
        """The shape of w: (C, M, R, S) for depthwise, else (K, C / groups, R, S)."""
        if self.is_depthwise:
            return self.in_channels, self.multiplier, *self.kernel
        return self.out_channels, self.in_channels // self.groups, *self.kernel

    @cached_property
    def output_shape(self) -> tuple[int, int, int, int]:
        return self.batch, self.out_channels, *self.output_size

    @property
    def tensors(self) -> dict[str, tuple[int, ...]]:
        """The shapes, in their logical order, of the tensors that kernels index."""
        rounded = [-(-size // stride) * stride for size, stride in zip(self.padded_input, self.stride, strict=True)]
        padded_x = (self.batch, self.in_channels, *rounded)
        return {"x": self.x_shape, "w": self.w_shape, "output": self.output_shape, "padded x": padded_x}

    @property
    def operands(self) -> Operands:
        """The shape in memory and dtype of each operand of the convolution, in order; the last one is the output."""
        output_shape = self.output_layout.shape(self.output_shape)
        operands: Operands = {
            "x": (self.x_layout.shape(self.x_shape), self.dtype),
            "w": (self.weight_layout.shape(self.w_shape), self.storage.weight),
        }
        if self.epilogue.scale:
            operands["scale"] = ((self.out_channels,), "float32")
        if self.epilogue.shift:
            operands["shift"] = ((self.out_channels,), "float32")
        if self.epilogue.residual:
            operands["residual"] = (output_shape, self.output_storage.name)
        operands["output"] = (output_shape, self.output_storage.name)
        return operands

    @cached_property
    def storage(self) -> StorageType:
        """The row of the type of x."""
        return STORAGE_TYPES[self.dtype]

    @cached_property
    def output_storage(self) -> StorageType:
        """The row of the type that the output and the residual have."""
        return STORAGE_TYPES[self.dtype if self.out_dtype is msgspec.UNSET else self.out_dtype]

    @property
    def zero_point(self) -> int:
        """The number of x that stands for zero."""
        return 0 if self.x_zero_point is msgspec.UNSET else self.x_zero_point

    @cached_property
    def itemsize(self) -> int:
        """The bytes of an element of x and w."""
        return self.storage.itemsize

    @cached_property
    def sum_bytes(self) -> int:
        """The bytes of a sum."""
        return STORAGE_TYPES[self.storage.sums].itemsize

    @cached_property
    def terms(self) -> int:
        """The number of products in a sum."""
        return prod(self.kernel) * (self.in_channels // self.groups)

    @property
    def flops(self) -> int:
        """The operations, two for each multiply-add of the direct algorithm; the epilogue is not counted."""
        return 2 * prod(self.output_shape) * self.terms

    @cached_property
    def bytes_moved(self) -> int:
        """The least memory traffic in bytes: input, weight, output and residual once each."""
        outputs = prod(self.output_shape) * (2 if self.epilogue.residual else 1)
        return self.itemsize * (prod(self.x_shape) + prod(self.w_shape)) + self.output_storage.itemsize * outputs

    def __str__(self) -> str:
        kind = "depthwise" if self.is_depthwise else "conv2d"
        (r, s), (sh, sw), (dh, dw) = self.kernel, self.stride, self.dilation
        text = f"{kind} {self.batch}x{self.in_channels}x{self.height}x{self.width} -> {self.out_channels}, {r}x{s}"
        text += f" stride {sh}x{sw}" if (sh, sw) != (1, 1) else ""
        text += f" dilation {dh}x{dw}" if (dh, dw) != (1, 1) else ""
        text += f" groups {self.groups}" if self.groups > 1 and not self.is_depthwise else ""
        text += f" padding {','.join(map(str, self.padding))}" if any(self.padding) else ""
        text += f" {self.layouts}" if not self.is_in_nchw else ""
        text += f" {self.dtype}" if self.dtype != "float32" else ""
        text += f" zero point {self.zero_point}" if self.zero_point else ""
        text += f" to {self.out_dtype}" if self.out_dtype is not msgspec.UNSET else ""
        return text + (f" + {self.epilogue}" if self.epilogue != Epilogue() else "")
