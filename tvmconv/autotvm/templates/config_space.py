"""The space of a user-defined template: its knobs, as the template defines them, and all their configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from tvm import tirx

from tvmconv.dispatch.task import Value
from tvmconv.problem.errors import InvalidArgumentError

from .knobs import (
    Axis,
    Entity,
    OtherOptionEntity,
    SplitEntity,
    annotate_values,
    extent_of,
    reorder_values,
    split_values,
)

LISTED = 2**15
"""The most configurations that tuners choose from: in a larger space a random set of them, always the same."""


class ConfigSpace:
    """The object that `get_config` returns while a template is asked for its knobs: each `define_...` adds one.

    `cfg[name]` is the first value of each knob, so that the template makes a schedule: the default. For tuners it is a
    space like those of tvmconv's own templates.

    >>> from tvmconv import autotvm
    >>> cfg = autotvm.ConfigSpace()
    >>> _ = cfg.define_split("tile", 8, num_outputs=2)
    >>> _ = cfg.define_knob("unroll", [False, True])
    >>> len(cfg), cfg["tile"].size, cfg["unroll"].val
    (8, (-1, 1), False)
    """

    is_fallback = False

    def __init__(self) -> None:
        self.knobs: dict[str, tuple[Any, ...]] = {}
        """The values of each knob, by name."""
        self._extents: dict[str, int] = {}
        """The lengths of the loops that knobs split, by knob."""
        self.flop = 0.0
        """The floating-point operations of a call that the template has declared by `add_flop`."""

    def define_knob(self, name: str, candidate: Sequence[Any]) -> list[Axis]:
        """Define a knob with the values in `candidate`; `cfg[name].val` is one of them.

        They are numbers, strings, True, False or None.
        """
        for value in candidate:
            if not (value is None or isinstance(value, bool | int | float | str)):
                raise InvalidArgumentError(f"candidate of {name!r}", value, "numbers, strings, True, False or None")
        return self._define(name, tuple(map(OtherOptionEntity, candidate)), 0)

    def define_split(
        self,
        name: str,
        axis: Any,
        policy: str = "factors",
        *,
        num_outputs: int | None = None,
        candidate: Sequence[Sequence[int]] | None = None,
        filter: Callable[[SplitEntity], bool] | None = None,  # noqa: A002 (AutoTVM's name)
        max_factor: int | None = None,
        no_tail: bool | None = None,
    ) -> list[Axis]:
        """Define a knob that splits a loop into `num_outputs`; `cfg[name].apply(sch, block, loop)` does it.

        `axis` is the extent, or has it: an axis of a `te` operation such as `C.op.axis[0]`, or `sch.get(loop)`.
        `policy` says which sizes are tried: "factors" of the extent; "power2", powers of two; "verbose", both; or
        "candidate", those in the list `candidate`. `cfg[name].size` has the sizes from outside, the outermost being
        -1, for the rest of the extent. Values for which `filter` is false, and sizes above `max_factor`, are left out;
        with `no_tail`, and always for "factors", also those that do not divide the extent.
        """
        self._extents[name] = extent_of(name, axis)
        values = split_values(name, self._extents[name], policy, num_outputs, candidate, filter, max_factor, no_tail)
        return self._define(name, values, len(values[0].size))

    def define_reorder(self, name: str, axes: Sequence[Any], policy: str, **options: Any) -> list[Axis]:
        """Define a knob that reorders loops; `cfg[name].apply(sch, block, loops)` does it.

        `axes` stand for the loops: results of other definitions, or any objects. `policy` is "identity"; "all"
        orders; "interval_all", those of the axes from `interval[0]` to before `interval[1]`; "candidate", those in the
        list `candidate`; "interleave" or "interleave_cuda", the chains of axes `spatial` and `reduce` merged.
        """
        return self._define(name, reorder_values(name, axes, policy, options), len(axes))

    def define_annotate(self, name: str, axes: Sequence[Any], policy: str, **options: Any) -> list[Axis]:
        """Define a knob that unrolls, vectorizes or binds loops; `cfg[name].apply(sch, block, loops)` does it.

        `policy` is "bind_gpu" or "bind_gpu_virtual", to bind the last of the loops to blocks and threads;
        "locate_cache", to choose `num_anchor` of them; or words such as "try_unroll_vec": each loop unrolled,
        vectorized or left alone.
        """
        return self._define(name, annotate_values(name, axes, policy, options), len(axes))

    @staticmethod
    def axis(length: Any) -> Any:
        """Return the object that stands for a loop of this length in a definition: the length itself."""
        return length

    reduce_axis = axis

    def add_flop(self, flop: Any) -> None:
        """Add floating-point operations of a call; without any they are counted in the computation."""
        self.flop += float(flop.value if isinstance(flop, tirx.IntImm | tirx.FloatImm) else flop)

    def raise_error(self, message: str) -> None:
        """Do nothing: the space is asked for the default, which is no trial; `ConfigEntity` keeps the message."""

    def valid(self) -> bool:
        """Return True: `raise_error` rejects single configurations only."""
        return True

    def __getitem__(self, name: str) -> Any:
        """Return the value of a knob in the default configuration."""
        return self._values_of(name)[0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.knobs)

    def __len__(self) -> int:
        return prod(map(len, self.knobs.values()))

    def __str__(self) -> str:
        lines = [f"  {name}: {len(values)} values, {_shortened(values)}" for name, values in self.knobs.items()]
        return "\n".join([f"space of {len(self)} configurations", *lines])

    def get(self, index: int) -> ConfigEntity:
        """Return the configuration with a number; the first knob varies fastest, and 0 is the default."""
        if not 0 <= index < len(self):
            raise InvalidArgumentError("index", index, f"a number from 0 to {len(self) - 1}")
        rest, value_indices = index, []
        for values in self.knobs.values():
            rest, value_index = divmod(rest, len(values))
            value_indices.append(value_index)
        return ConfigEntity(self, index, tuple(value_indices))

    @cached_property
    def default(self) -> ConfigEntity:
        """The configuration with the first value of each knob."""
        return self.get(0)

    @cached_property
    def configs(self) -> tuple[ConfigEntity, ...]:
        """The configurations that tuners choose from, the default first: all, or `LISTED` of them at random."""
        numbers: Any = range(len(self))
        if len(self) > LISTED:
            drawn = np.random.default_rng(0).integers(1, len(self), LISTED)
            numbers = [0, *sorted(set(drawn.tolist()))]
        return tuple(map(self.get, numbers))

    def number(self, config: ConfigEntity) -> int:
        """Return the number of a configuration in the space, which a log holds beside it."""
        return config.index

    def __contains__(self, config: object) -> bool:
        return isinstance(config, ConfigEntity) and config.space.knobs == self.knobs

    def values(self, config: ConfigEntity) -> Mapping[str, Any]:
        """Return the value of each knob in a configuration."""
        return config.values

    def config(self, values: Mapping[str, Any]) -> ConfigEntity:
        """Return the configuration with these values of the knobs."""
        return self.configured({name: entity.value for name, entity in values.items()})

    def configured(self, knobs: Mapping[str, Value]) -> ConfigEntity:
        """Return the configuration with knobs as a log has them; refuse knobs and values that are not in the space."""
        if absent := self.knobs.keys() ^ knobs.keys():
            raise InvalidArgumentError("knobs", sorted(absent), f"exactly {', '.join(self.knobs)}")
        index, factor, value_indices = 0, 1, []
        for name, values in self.knobs.items():
            key = _key(knobs[name])
            number = next((number for number, entity in enumerate(values) if _key(entity.value) == key), None)
            if number is None:
                raise InvalidArgumentError(f"knob {name!r}", knobs[name], f"one of {_shortened(values)}")
            value_indices.append(number)
            index += factor * number
            factor *= len(values)
        return ConfigEntity(self, index, tuple(value_indices))

    def _define(self, name: str, values: tuple[Entity, ...], outputs: int) -> list[Axis]:
        if name in self.knobs:
            raise InvalidArgumentError("name", name, "one that no other knob has")
        if not values:
            raise InvalidArgumentError(f"candidate of {name!r}", [], "at least one")
        if len({_key(entity.value) for entity in values}) < len(values):
            raise InvalidArgumentError(f"candidate of {name!r}", _shortened(values), "values that differ")
        self.knobs[name] = values
        return [Axis(name, number) for number in range(outputs)]

    def _values_of(self, name: str) -> tuple[Any, ...]:
        if name not in self.knobs:
            raise InvalidArgumentError("knob", name, f"one of {', '.join(self.knobs) or 'those defined before'}")
        return self.knobs[name]


class FallbackConfigEntity(ConfigSpace):
    """The default configuration, which a template gets when it is called without a record.

    The template may choose another one, by `fallback_split` or `cfg[name] = OtherOptionEntity(4)`.
    """

    is_fallback = True

    def __init__(self) -> None:
        super().__init__()
        self._chosen: dict[str, Entity] = {}

    def fallback_split(self, name: str, constraints: Sequence[int]) -> None:
        """Choose a split: from the innermost size out, the largest factors within the constraints; -1 is no constraint.

        An extent of 128 by [-1, 8, 4] is split into [4, 8, 4], and one of 49 into [7, 7, 1].
        """
        values = self._values_of(name)
        if not isinstance(values[0], SplitEntity) or len(constraints) != len(values[0].size):
            raise InvalidArgumentError(f"constraints of {name!r}", list(constraints), "one for each loop of a split")
        rest, size = self._extents[name], list[int]()
        for limit in reversed(constraints):
            size.append(
                max(factor for factor in range(1, rest + 1) if rest % factor == 0 and factor <= (limit % 2**63))
            )
            rest //= size[-1]
        self._chosen[name] = SplitEntity(tuple(size[::-1]))

    def __getitem__(self, name: str) -> Any:
        return self._chosen.get(name, super().__getitem__(name))

    def __setitem__(self, name: str, entity: Entity) -> None:
        self._values_of(name)
        self._chosen[name] = entity


class ConfigEntity:
    """A configuration of a space, under the names that a template knows: `cfg["tile_x"].size`, `cfg["k"].val`.

    When the template runs with it, its `define_...` calls change nothing.
    """

    is_fallback = False

    def __init__(self, space: ConfigSpace, index: int, value_indices: tuple[int, ...]) -> None:
        self.space = space
        self.index = index
        self.value_indices = value_indices
        """The index of each knob's value among the knob's values."""
        self.errors: list[str] = []

    @property
    def values(self) -> dict[str, Any]:
        """The value of each knob."""
        return {
            name: values[index]
            for (name, values), index in zip(self.space.knobs.items(), self.value_indices, strict=True)
        }

    @property
    def entity(self) -> tuple[tuple[str, str, Value], ...]:
        """The knobs as a log has them: name, kind and value."""
        return tuple((name, entity.KIND, entity.value) for name, entity in self.values.items())

    def numbers(self) -> tuple[float, ...]:
        """Return numbers for the cost model: the index of each knob's value, then the numbers of each value."""
        of_values = (number for entity in self.values.values() for number in entity.numbers())
        return (*map(float, self.value_indices), *of_values)

    def __getitem__(self, name: str) -> Any:
        knob_index = list(self.space.knobs).index(name) if name in self.space.knobs else 0
        return self.space._values_of(name)[self.value_indices[knob_index] if self.value_indices else 0]

    def __iter__(self) -> Iterator[str]:
        return iter(self.space)

    def define_knob(self, name: str, *definition: Any, **options: Any) -> list[Axis]:
        """Return the axes that the space returned for this name; the other definitions do the same."""
        value = self[name].value
        return [Axis(name, number) for number in range(len(value) if isinstance(value, tuple) else 0)]

    define_split = define_reorder = define_annotate = define_knob
    axis = reduce_axis = staticmethod(ConfigSpace.axis)

    def raise_error(self, message: str) -> None:
        """Declare that this configuration makes no kernel: its trial is a build error with this reason."""
        self.errors.append(message)

    def valid(self) -> bool:
        """Return whether `raise_error` was not called."""
        return not self.errors

    def add_flop(self, flop: Any) -> None:
        """Do nothing: the space has counted the operations."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ConfigEntity)
            and self.value_indices == other.value_indices
            and (self.space is other.space or self.entity == other.entity)
        )

    def __hash__(self) -> int:
        return self.index

    def __str__(self) -> str:
        return ", ".join(f"{name}={entity}" for name, entity in self.values.items())

    def __repr__(self) -> str:
        return f"ConfigEntity({self}, index={self.index})"


def _key(value: Value) -> tuple[type, Value]:
    """Return a key that differs for values that Python takes for equal, such as True and 1."""
    return type(value), value


def _shortened(values: Sequence[Entity]) -> str:
    shown = ", ".join(map(str, values[:6]))
    return shown if len(values) <= 6 else f"{shown}, …"
