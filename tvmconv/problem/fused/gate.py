"""The description of a gate of squeeze and excitation, without TVM: two layers on images of one pixel."""

from __future__ import annotations

from ..errors import InvalidArgumentError
from ..workload import ConvWorkload, Operands
from .base import FusedWorkload


class Gate(FusedWorkload, frozen=True, tag="gate"):
    """Two 1x1 convolutions of images of one pixel; nothing but the second one reads the results of the first.

    Each may have a shift and an activation; both read numbers of one type. Raises `InvalidArgumentError` for two
    convolutions of another kind.
    """

    first: ConvWorkload
    second: ConvWorkload

    def __post_init__(self) -> None:
        for name in ("first", "second"):
            layer = getattr(self, name)
            if not layer.is_linear or layer.epilogue.scale or layer.epilogue.residual:
                raise InvalidArgumentError(
                    name, str(layer), "a 1x1 convolution of one pixel, without scale and residual"
                )
        expected = self.first.batch, self.first.out_channels, self.first.dtype
        if (self.second.batch, self.second.in_channels, self.second.dtype) != expected:
            raise InvalidArgumentError("second", str(self.second), f"one that reads what {self.first} computes")

    @property
    def dtype(self) -> str:
        """The type of x and of the first weight."""
        return self.first.dtype

    @property
    def operands(self) -> Operands:
        """The shape in memory and dtype of each operand of the kernel, in order; the last one is the output.

        x is (N, C, 1, 1), w (S, C), its shift b (S,), v (S, K), its shift c (K,), and the output (N, K, 1, 1).
        """
        first, second = self.first, self.second
        found = {
            "x": (first.x_shape, first.dtype),
            "w": ((first.out_channels, first.in_channels), first.dtype),
            "b": ((first.out_channels,), "float32"),
            "v": ((second.in_channels, second.out_channels), second.dtype),
            "c": ((second.out_channels,), "float32"),
            "output": ((first.batch, second.out_channels, 1, 1), second.output_storage.name),
        }
        left_out = {"b": not first.epilogue.shift, "c": not second.epilogue.shift}
        return {name: each for name, each in found.items() if not left_out.get(name)}

    @property
    def terms(self) -> int:
        """The number of products for an output, with its share of those that all outputs of an image have in common."""
        return self.first.out_channels * (self.first.in_channels + self.second.out_channels) // self.second.out_channels

    @property
    def flops(self) -> int:
        """The operations, two for each multiply-add of both layers."""
        return self.first.flops + self.second.flops

    def __str__(self) -> str:
        return f"gate of {self.first} and {self.second}"
