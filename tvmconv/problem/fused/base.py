"""The description of several layers that one kernel computes, without TVM: the base of all kinds of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from math import prod
from typing import ClassVar, TypeVar

import msgspec

from ..dtypes import STORAGE_TYPES, StorageType
from ..layout import Layout, data_layout
from ..workload import ConvWorkload, Operands

F = TypeVar("F", bound="FusedWorkload")


class FusedWorkload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The workload of several layers in one kernel. A kind of it is a subclass with a tag, its name in JSON.

    The layers that are convolutions are fields of the type `ConvWorkload`: `with_layers` finds them.
    """

    HAS_WORDS: ClassVar[bool] = False
    """True if the precision makes a difference in float32; False for sums of multiply-adds, which keep every word."""

    @property
    @abstractmethod
    def dtype(self) -> str:
        """The type of the factors."""

    @property
    @abstractmethod
    def operands(self) -> Operands:
        """The shape in memory and dtype of each operand of the kernel, in order; the last one is the output."""

    @property
    @abstractmethod
    def terms(self) -> int:
        """The number of products for an output, with its share of those that several outputs have in common."""

    @property
    @abstractmethod
    def flops(self) -> int:
        """The operations, two for each multiply-add of all layers."""

    @property
    def bytes_moved(self) -> int:
        """The least memory traffic in bytes: each operand once."""
        return sum(prod(shape) * STORAGE_TYPES[dtype].itemsize for shape, dtype in self.operands.values())

    @abstractmethod
    def __str__(self) -> str:
        """Return the kind, the sizes and the types in words."""

    @property
    def kind(self) -> str:
        """The name of the kind."""
        return str(self.__struct_config__.tag)

    @property
    def storage(self) -> StorageType:
        """The row of the type of the factors."""
        return STORAGE_TYPES[self.dtype]

    @property
    def is_in_nchw(self) -> bool:
        """True: the operands have no other layout than their shapes in memory."""
        return True

    @property
    def output_layout(self) -> Layout:
        """The order of the dimensions of an output of images, which a kind that leaves a size open has."""
        return data_layout("NCHW")

    def with_layers(self: F, change: Callable[[ConvWorkload], ConvWorkload]) -> F:
        """Return the workload with each of its convolutions changed."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        layers = {name: change(each) for name, each in fields.items() if isinstance(each, ConvWorkload)}
        return msgspec.structs.replace(self, **layers)

    def without_epilogue(self: F) -> F:
        """Return the workload itself: its activations are part of what it computes."""
        return self

    def to_json(self) -> str:
        """Return one line of JSON with every field and the kind of workload."""
        return msgspec.json.encode(self).decode()
