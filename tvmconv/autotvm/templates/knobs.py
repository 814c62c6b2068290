"""Kinds of knobs of a user-defined template, with the values of each and their effect on a schedule.

Names, policies and the order of the values are AutoTVM's, and so are the values in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product
from math import inf, prod
from typing import Any, ClassVar, NamedTuple

import tvm
import tvm_ffi
from tvm import tirx
from tvm.s_tir import Schedule

from tvmconv.dispatch.task import Value
from tvmconv.problem.errors import InvalidArgumentError

FUSED = "fuse"
BINDINGS = {
    "bind_gpu": {
        6: ("blockIdx.z", "blockIdx.y", "blockIdx.x", "threadIdx.z", "threadIdx.y", "threadIdx.x"),
        4: ("blockIdx.y", "blockIdx.x", "threadIdx.y", "threadIdx.x"),
        2: ("blockIdx.x", "threadIdx.x"),
    },
    "bind_gpu_virtual": {
        9: (
            *("blockIdx.z", "blockIdx.y", "blockIdx.x"),
            *("vthread.z", "vthread.y", "vthread.x"),
            *("threadIdx.z", "threadIdx.y", "threadIdx.x"),
        ),
        6: ("blockIdx.y", "blockIdx.x", "vthread.y", "vthread.x", "threadIdx.y", "threadIdx.x"),
        3: ("blockIdx.x", "vthread.x", "threadIdx.x"),
    },
}
"""The thread axes that loops are bound to, by the least number of loops; loops before these are fused."""


class Axis(NamedTuple):
    """A loop in the result of a knob: `define_split` and the others return these, to define more knobs with."""

    knob: str
    number: int


class Entity:
    """A value of a knob."""

    KIND: ClassVar[str]
    """The name of the kind in a log."""

    @property
    def value(self) -> Value:
        """The value as a log holds it."""
        raise NotImplementedError

    def numbers(self) -> tuple[float, ...]:
        """Return numbers for the cost model: none negative, and equally many for each value of a knob."""
        raise NotImplementedError

    def __str__(self) -> str:
        return str(list(self.value) if isinstance(self.value, tuple) else self.value)


@dataclass(frozen=True)
class SplitEntity(Entity):
    """The sizes that a loop is split into, from outside in; -1 for the outermost is the rest of the extent."""

    KIND = "sp"
    size: tuple[int, ...]

    @property
    def value(self) -> Value:
        return self.size

    def numbers(self) -> tuple[float, ...]:
        return tuple(map(float, self.size[1:]))

    def apply(self, sch: Schedule, block: Any, loop: Any) -> list[Any]:
        """Split a loop of a block; return the new ones, from outside in."""
        require_loops(sch, block, [loop])
        return list(sch.split(loop, factors=[None if size == -1 else size for size in self.size]))


@dataclass(frozen=True)
class ReorderEntity(Entity):
    """An order of loops, given by the indices that they had before."""

    KIND = "re"
    perm: tuple[int, ...]

    @property
    def value(self) -> Value:
        return self.perm

    def numbers(self) -> tuple[float, ...]:
        return tuple(map(float, self.perm))

    def apply(self, sch: Schedule, block: Any, loops: Sequence[Any]) -> list[Any]:
        """Reorder loops of a block; return them in the new order."""
        require_loops(sch, block, loops)
        ordered = [loops[index] for index in self.perm]
        sch.reorder(*ordered)
        return ordered


@dataclass(frozen=True)
class AnnotateEntity(Entity):
    """The annotation of each of some loops, or, to locate a cache, the indices of loops."""

    KIND = "an"
    anns: tuple[int | str, ...]

    @property
    def value(self) -> Value:
        return self.anns

    def numbers(self) -> tuple[float, ...]:
        codes = ("none", "unroll", "vec")
        return tuple(float(ann == code) for ann in self.anns for code in codes)

    def apply(
        self,
        sch: Schedule,
        block: Any,
        loops: Sequence[Any],
        axis_lens: Sequence[int] | None = None,
        max_unroll: int | None = None,
        vec_size: Sequence[int] | None = None,
        cfg: Any = None,
        source: Sequence[Sequence[Any]] | None = None,
    ) -> list[Any]:
        """Unroll, vectorize, fuse or bind loops of a block; return the loops that they have become.

        A loop longer than `max_unroll` that is to be unrolled, and one of a length that is not in `vec_size` that is to
        be vectorized, make the configuration `cfg` invalid; `axis_lens` are by default the loops' extents. With a
        `source`, which is a list of lists of blocks, each list is computed at the loop with an index of the value.
        """
        require_loops(sch, block, loops)
        loops = list(loops)
        if source is not None:
            for stages, index in zip(source, self.anns, strict=True):
                for stage in stages:
                    sch.compute_at(stage, loops[int(index)])
            return loops
        lengths = axis_lens or [int(sch.get(loop).extent) for loop in loops]
        for index, ann in enumerate(self.anns):
            if ann == "unroll":
                if max_unroll is not None and lengths[index] > max_unroll:
                    cfg.raise_error(f"a loop of {lengths[index]} is too long to unroll, above {max_unroll}")
                sch.unroll(loops[index])
            elif ann == "vec":
                if vec_size is not None and lengths[index] not in vec_size:
                    cfg.raise_error(f"a loop of {lengths[index]} is none to vectorize, which are {list(vec_size)}")
                sch.vectorize(loops[index])
            elif ann == FUSED:
                loops[index + 1] = sch.fuse(loops[index], loops[index + 1])
            elif ann != "none":
                sch.bind(loops[index], ann)
        return loops


@dataclass(frozen=True)
class OtherOptionEntity(Entity):
    """A value of `define_knob`."""

    KIND = "ot"
    val: bool | int | float | str | None

    @property
    def value(self) -> Value:
        return self.val

    def numbers(self) -> tuple[float, ...]:
        return (float(self.val),) if isinstance(self.val, int | float) and self.val >= 0 else (0.0,)


def split_values(
    name: str,
    extent: int,
    policy: str,
    num_outputs: int | None,
    candidate: Sequence[Sequence[int]] | None,
    keep: Callable[[SplitEntity], bool] | None,
    max_factor: int | None,
    no_tail: bool | None,
) -> tuple[SplitEntity, ...]:
    """Return the values of a knob that splits a loop of an extent; see `ConfigSpace.define_split`."""
    if policy == "candidate":
        if not candidate:
            raise InvalidArgumentError(f"candidate of {name!r}", candidate, "a list of splits")
        sizes: Iterator[tuple[int, ...]] = (tuple(map(int, size)) for size in candidate)
        found = [_checked(name, size, extent, num_outputs, bool(no_tail)) for size in sizes]
    else:
        if num_outputs is None or num_outputs < 1:
            raise InvalidArgumentError(f"num_outputs of {name!r}", num_outputs, "how many loops the split makes")
        limit = inf if max_factor is None else max_factor
        factors = [factor for factor in _factors(name, extent, policy) if factor <= limit]
        whole = policy == "factors" if no_tail is None else no_tail
        # AutoTVM's order, in which the size next to the outermost varies fastest.
        inner = (sizes[::-1] for sizes in product(factors, repeat=num_outputs - 1))
        found = [SplitEntity((-1, *sizes)) for sizes in inner if _divides(prod(sizes), extent, whole)]
    kept = tuple(entity for entity in found if keep is None or keep(entity))
    if not kept:
        raise InvalidArgumentError(f"split {name!r} of {extent}", policy, "a policy and a filter that leave a split")
    return kept


def reorder_values(
    name: str, axes: Sequence[Any], policy: str, options: Mapping[str, Any]
) -> tuple[ReorderEntity, ...]:
    """Return the values of a knob that reorders loops; see `ConfigSpace.define_reorder`."""
    indices = tuple(range(len(axes)))
    orders: list[tuple[int, ...]]
    if policy == "identity":
        orders = [indices]
    elif policy == "all":
        orders = list(permutations(indices))
    elif policy == "interval_all":
        begin, end = options["interval"]
        orders = [indices[:begin] + inner + indices[end:] for inner in permutations(indices[begin:end])]
    elif policy == "candidate":
        orders = [tuple(_axis_index(name, axes, axis) for axis in order) for order in options["candidate"]]
    elif policy in ("interleave", "interleave_cuda"):
        spatial, reduce = (
            [[_axis_index(name, axes, axis) for axis in chain] for chain in options[kind]]
            for kind in ("spatial", "reduce")
        )
        outer, inner = _merged([chain[:-1] for chain in spatial]), [chain[-1:] for chain in spatial]
        if policy == "interleave":
            orders = [(*o, *i) for o in outer for i in _merged(inner + reduce)]
        else:
            orders = [(*o, *r, *(axis for chain in inner for axis in chain)) for o in outer for r in _merged(reduce)]
    else:
        known = "identity, all, interval_all, candidate, interleave or interleave_cuda"
        raise InvalidArgumentError(f"policy of {name!r}", policy, known)
    if wrong := [order for order in orders if sorted(order) != list(indices)]:
        raise InvalidArgumentError(f"reorder {name!r}", wrong[0], f"an order of all {len(axes)} axes")
    return tuple(map(ReorderEntity, orders))


def annotate_values(
    name: str, axes: Sequence[Any], policy: str, options: Mapping[str, Any]
) -> tuple[AnnotateEntity, ...]:
    """Return the values of a knob that annotates loops; see `ConfigSpace.define_annotate`."""
    count = len(axes)
    if policy in BINDINGS:
        size = next((size for size in BINDINGS[policy] if size <= count), None)
        if size is None:
            raise InvalidArgumentError(f"axes of {name!r}", count, f"at least {min(BINDINGS[policy])} for {policy}")
        return (AnnotateEntity((FUSED,) * (count - size) + BINDINGS[policy][size]),)
    if policy == "locate_cache":
        return tuple(map(AnnotateEntity, combinations(range(count), options["num_anchor"])))
    words = policy.replace("try", "none").split("_")
    if not set(words) <= {"none", "unroll", "vec"}:
        known = "bind_gpu, bind_gpu_virtual, locate_cache, or words of try, none, unroll and vec such as try_unroll_vec"
        raise InvalidArgumentError(f"policy of {name!r}", policy, known)
    every = product(words, repeat=count)
    return tuple(AnnotateEntity(anns) for anns in every if anns.count("vec") <= 1)


def extent_of(name: str, axis: Any) -> int:
    """Return the length of a loop to split: an extent, an axis of a `te` operation, or `sch.get(loop)`."""
    range_or_loop = axis.dom if isinstance(axis, tirx.IterVar) else axis
    length = range_or_loop.extent if isinstance(range_or_loop, tvm.ir.Range | tirx.For) else range_or_loop
    if isinstance(length, bool) or not isinstance(length, int | tirx.IntImm) or int(length) < 1:
        expected = "an extent, an axis such as C.op.axis[0], or sch.get(loop), of a length that is known"
        raise InvalidArgumentError(f"axis of {name!r}", axis, expected)
    return int(length)


def require_loops(sch: Schedule, block: Any, loops: Sequence[Any]) -> None:
    """Refuse loops that are not around a block: they have been split, fused, or are another block's."""
    around = [sch.get(loop) for loop in sch.get_loops(block)]
    for loop in loops:
        if not any(sch.get(loop).same_as(each) for each in around):
            raise InvalidArgumentError("loop", str(sch.get(loop).loop_var), f"a loop around {sch.get(block).name_hint}")


def _factors(name: str, extent: int, policy: str) -> list[int]:
    divisors = [size for size in range(1, extent + 1) if extent % size == 0]
    powers = [2**exponent for exponent in range(extent.bit_length())]
    found = {"factors": divisors, "power2": powers, "verbose": sorted({*divisors, *powers})}
    if policy not in found:
        raise InvalidArgumentError(f"policy of {name!r}", policy, "factors, power2, verbose or candidate")
    return found[policy]


def _divides(size: int, extent: int, whole: bool) -> bool:
    return extent % size == 0 or (not whole and size < extent)


def _checked(name: str, size: tuple[int, ...], extent: int, num_outputs: int | None, whole: bool) -> SplitEntity:
    """Return a candidate; raise `InvalidArgumentError` unless it splits the extent."""
    if num_outputs is not None and len(size) != num_outputs:
        raise InvalidArgumentError(f"candidate of {name!r}", list(size), f"{num_outputs} sizes")
    if size[:1] == (-1,) and min(size[1:], default=1) > 0:
        fits = _divides(prod(size[1:]), extent, whole)
    else:
        fits = min(size, default=0) > 0 and prod(size) == extent
    if not fits:
        expected = f"positive sizes whose product is {extent}, of which the first may be -1 for what is left"
        raise InvalidArgumentError(f"candidate of {name!r}", list(size), expected)
    return SplitEntity(size)


def _axis_index(name: str, axes: Sequence[Any], axis: Any) -> int:
    for index, known in enumerate(axes):
        if known is axis or (isinstance(known, Axis | int | str) and known == axis):
            return index
        if isinstance(known, tvm_ffi.Object) and isinstance(axis, tvm_ffi.Object) and known.same_as(axis):
            return index
    raise InvalidArgumentError(f"reorder {name!r}", axis, "one of its axes")


def _merged(chains: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """Return AutoTVM's ways to merge chains in their order: each time the first of the longest chain comes next."""
    left = [len(chain) for chain in chains]
    if not any(left):
        return [()]
    longest = left.index(max(left))
    rest = [chain[1:] if index == longest else chain for index, chain in enumerate(chains)]
    return [(chains[longest][0], *others) for others in _merged(rest)]
