"""Genetic search, in which good configurations have children that mix their knobs."""

from __future__ import annotations

from math import inf
from typing import Any

from tvmconv.dispatch.task import Task
from tvmconv.problem.errors import InvalidArgumentError
from tvmconv.problem.parameters import is_integer

from .tuner import Tuner


class GATuner(Tuner):
    """Crosses the best configurations so far, with a mutation now and then.

    The first `population` trials are random. From then on each batch is a generation: its parents are the best
    `population` of all trials, the faster the likelier, and a child that is illegal or known is not born.

    >>> import tvmconv
    >>> from tvmconv import autotvm
    >>> task = autotvm.create(tvmconv.ConvWorkload.depthwise((1, 32, 14, 14), (32, 1, 3, 3)), "llvm")
    >>> tuner = autotvm.GATuner(task, pop_size=16, mutation_prob=0.2, seed=0)
    >>> len(tuner.next_batch(4))
    4
    """

    attempts = 20
    """The number of children tried for each that is wanted, before random configurations are taken instead."""

    def __init__(
        self,
        task: Task,
        pop_size: int = 32,
        *,
        mutation_prob: float = 0.1,
        seed: int | None = None,
        **others: object,
    ) -> None:
        super().__init__(task, seed=seed, **others)
        if not is_integer(pop_size) or pop_size < 2:
            raise InvalidArgumentError("pop_size", pop_size, "at least 2")
        if not isinstance(mutation_prob, int | float) or not 0 <= mutation_prob <= 1:
            raise InvalidArgumentError("mutation_prob", mutation_prob, "a probability")
        self.population = pop_size
        self.mutation = mutation_prob
        """The probability that a knob of a child has any of its values instead of a parent's."""

    @property
    def batch_size(self) -> int:
        """The number of trials in a generation."""
        return self.population

    def next_batch(self, size: int) -> list[Any]:
        works = [config for config, cost in self.costs.items() if cost < inf]
        parents = sorted(works, key=self.costs.__getitem__)[: self.population]
        if self.trials < self.population or len(parents) < 2:
            return self.sample(size)
        speeds = [1 / self.costs[parent] for parent in parents]
        odds = [speed / sum(speeds) for speed in speeds]
        born: dict[Any, None] = {}
        for _ in range(self.attempts * size):
            mother, father = self.rng.choice(len(parents), size=2, replace=False, p=odds)
            child = self._child(parents[mother], parents[father])
            if child in self.space and child not in self.costs and child not in self._under_way:
                born[child] = None
            if len(born) == size:
                break
        strangers = (config for config in self.sample(2 * size) if config not in born)
        return [*born, *strangers][:size]

    def _child(self, mother: Any, father: Any) -> Any:
        parents = self.space.values(mother), self.space.values(father)

        def knob(name: str, values: tuple[Any, ...]) -> Any:
            if self.rng.random() < self.mutation:
                return values[self.rng.integers(len(values))]
            return parents[0 if self.rng.random() < 0.5 else 1][name]

        return self.space.config({name: knob(name, values) for name, values in self.space.knobs.items()})
