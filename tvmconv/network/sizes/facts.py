"""The facts that are known of a model's open sizes, and the conditions that a call of its network has to meet."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TypeAlias

import tvm
import tvm_ffi
from tvm import tirx
from tvm.sym import Analyzer, ProofStrength
from tvm.tirx.analysis import undefined_vars

from tvmconv.compute.substitution import substitute

from ..graph.faults import Refused
from ..graph.graph import Branch
from ..graph.sizes import Condition, OpenSize, merged

Size: TypeAlias = int | tirx.Expr
"""A size of a tensor: a number, or an expression of open sizes."""

LARGEST = 2**31 - 1
"""The largest value of an open size without another bound."""

SAMPLES = (1009, 5003)
"""Values of open sizes that tell whether a quotient of two is a number: primes, which divide little."""


class SizeFacts:
    """The bounds of the open sizes of a model's inputs, and the conditions that its operators put on them.

    An importer has one; its converters simplify sizes by the bounds, and require conditions of them.
    """

    def __init__(
        self,
        inputs: Iterable[OpenSize] = (),
        conditions: Iterable[Condition] = (),
        choices: Sequence[bool] = (),
    ) -> None:
        """Start with some conditions; `inputs` are the open sizes of the model's inputs.

        `choices` are the results of the first calls of `choose`.
        """
        self._inputs = merged(inputs)
        self._told = tuple(choices)
        self.choices: list[bool] = []
        """The results of `choose` so far, in order."""
        self._branch: Branch = ()
        self._conditions: dict[Branch, dict[str, Condition]] = {(): {each.text: each for each in conditions}}
        self.fixed: dict[str, int] = {}
        """The only value that an open size may have, by its name, where conditions leave one."""
        self._required: set[tuple[Branch, str]] = set()
        """The tests that were required inside a branch, as they were then."""
        self._least: dict[Branch, dict[str, int]] = {}
        """The smallest values that the conditions of a branch leave of open sizes, by name."""

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions of every call that were required and that bounds do not prove, each once, in order."""
        return self.conditions_inside(())

    def conditions_inside(self, branch: Branch) -> tuple[Condition, ...]:
        """Return the conditions that have to hold only if a branch runs."""
        return tuple(self._conditions.get(branch, {}).values())

    @contextmanager
    def in_branch(self, branch: Branch) -> Iterator[None]:
        """Require what is required inside only of calls in which a branch runs; `()` stands for all calls."""
        outside, self._branch = self._branch, branch
        try:
            yield
        finally:
            self._branch = outside

    @contextmanager
    def in_branch_of_test(self, number: int, holds: bool) -> Iterator[None]:
        """Go into a branch of an If in the present branch: `number` is that of its test, `holds` the test's value."""
        with self.in_branch((*self._branch, (number, holds))):
            yield

    def require_of_all_but(self, branches: Collection[Branch]) -> None:
        """Require the conditions of all branches except these of every call."""
        for branch in [branch for branch in self._conditions if branch and branch not in branches]:
            for text, condition in self._conditions.pop(branch).items():
                self._conditions[()].setdefault(text, condition)

    def bounds(self, name: str) -> OpenSize:
        """Return the open size of the inputs that has a name, with its bounds."""
        return self._inputs.get(name, OpenSize(name))

    def are_of_inputs(self, size: Size) -> bool:
        """Return whether the sizes of the inputs decide on a size; elements of tensors decide on all others."""
        return isinstance(size, int) or all(var.name in self._inputs for var in undefined_vars(size))

    def simplified(self, size: Size) -> Size:
        """Return a size in its simplest form, a number where it is one: n for min(n, 2**63 - 1)."""
        if isinstance(size, int):
            return size
        simple = self._analyzer(size).simplify(size, 3)
        return int(simple) if isinstance(simple, tirx.IntImm) else simple

    def proves(self, test: bool | tirx.Expr) -> bool | None:
        """Return whether a test holds for all sizes within bounds (True), for none (False), or for some (None)."""
        if isinstance(test, (bool, int)):
            return bool(test)
        analyzer = self._analyzer(test)
        if analyzer.can_prove(test, ProofStrength.SYMBOLIC_BOUND):
            return True
        return False if analyzer.can_prove(tirx.Not(test), ProofStrength.SYMBOLIC_BOUND) else None

    def larger(self, a: Size, b: Size) -> Size:
        """Return the larger one of two sizes, one of them itself where it is that in each call."""
        return self._extreme(a, b, True)

    def smaller(self, a: Size, b: Size) -> Size:
        """Return the smaller one of two sizes, one of them itself where it is that in each call."""
        return self._extreme(a, b, False)

    def _extreme(self, a: Size, b: Size, largest: bool) -> Size:
        if isinstance(a, int) and isinstance(b, int):
            return max(a, b) if largest else min(a, b)
        known = self.proves(a >= b if largest else a <= b)
        if known is not None:
            return a if known else b
        if self.proves(b >= a if largest else b <= a):
            return b
        return self.simplified((tirx.max if largest else tirx.min)(as_expr(a), as_expr(b)))

    def are_equal(self, a: Size, b: Size) -> bool:
        """Return whether two sizes are equal in each call."""
        if isinstance(a, int) and isinstance(b, int):
            return a == b
        return bool(tvm_ffi.structural_equal(a, b)) or self.proves(tirx.EQ(as_expr(a), as_expr(b))) is True

    def require(self, test: bool | tirx.Expr, node: str, need: str) -> None:
        """Require that a test holds in each call.

        `node` and `need` are the words of the error, as in "Split (node 'parts')" and "needs 6 rows, not h". Raises
        `Refused` with the need for a test that holds for no sizes, and for one that elements of tensors decide.
        """
        code = python_text(test)
        if any((self._branch[:depth], code) in self._required for depth in range(len(self._branch) + 1)):
            return  # layers share sizes, and a proof takes milliseconds
        if (known := self.proves(test)) is False:
            raise Refused(f"it {need}")
        if known is None:
            self._add(test, node, need)
        self._required.add((self._branch, code))

    def _add(self, test: tirx.Expr, node: str, need: str) -> None:
        """Add a test that holds for some sizes to the conditions; raise `Refused` where elements of tensors decide."""
        simple = _divided(self._analyzer(test).simplify(test, 3))
        if not self.are_of_inputs(simple):
            raise Refused(f"it {need}, which numbers decide that are known only when the model runs")
        # TVM computes sizes when a call begins, in branches that do not run as well: no divisor may be 0.
        divides = self._branch and any(self.proves(divisor > 0) is not True for divisor in _divisors(test))
        with self.in_branch(() if divides else self._branch):
            self._learn(simple)
            text = python_text(simple)
            if text not in self._conditions[()]:
                self._conditions.setdefault(self._branch, {}).setdefault(text, Condition(text, f"{node} {need}"))

    def _learn(self, test: tirx.Expr) -> None:
        """Remember of a condition, in its simplest form, the only or the smallest value that it leaves of a size."""
        is_number = isinstance(test, tirx.EQ) and isinstance(test.a, tvm.ir.Var) and isinstance(test.b, tirx.IntImm)
        if is_number and not self._branch:
            self.fixed[test.a.name] = int(test.b)
        if isinstance(test, (tirx.LE, tirx.LT)) and isinstance(test.b, tvm.ir.Var) and isinstance(test.a, tirx.IntImm):
            least = int(test.a) + isinstance(test, tirx.LT)
            known = self._least.setdefault(self._branch, {})
            known[test.b.name] = max(least, known.get(test.b.name, least))

    def choose(self, test: bool | tirx.Expr, preferred: bool, node: str, need: str) -> bool:
        """Return whether a test holds; where open sizes decide, one of both is chosen, and required of each call.

        An importer chooses where the rank of a tensor follows from the test, as there is no module for both. It tries
        the other choice if the rest of the model does not take the preferred one. `node` and `need` are as in
        `require`. Raises `Refused` where elements of tensors decide.
        """
        if (known := self.proves(test)) is not None:
            return known
        index = len(self.choices)
        holds = self._told[index] if index < len(self._told) else preferred
        self.choices.append(holds)
        self.require(test if holds else tirx.Not(test), node, need)
        return holds

    @contextmanager
    def rolled_back(self) -> Iterator[None]:
        """Forget what is required and chosen inside."""
        conditions, choices = {branch: dict(each) for branch, each in self._conditions.items()}, list(self.choices)
        required, fixed, least = (
            set(self._required),
            dict(self.fixed),
            {branch: dict(each) for branch, each in self._least.items()},
        )
        try:
            yield
        finally:
            self._conditions, self.choices, self._required = conditions, choices, required
            self.fixed, self._least = fixed, least

    def quotient(self, sizes: Iterable[Size], divisors: Iterable[Size]) -> Size:
        """Return the product of sizes divided by that of divisors, rounded down; equal factors are cancelled."""
        above, below = (product(each) for each in without_common(sizes, divisors))
        times = _times(above, below)
        if times is not None and self.are_equal(above, product([below, times])):
            return times
        return self.simplified(above // below)

    def _analyzer(self, expression: tirx.Expr) -> Analyzer:
        """Return TVM's analyzer with the bounds of the variables of an expression."""
        analyzer = Analyzer()
        known = [self._least.get(self._branch[:depth], {}) for depth in range(len(self._branch) + 1)]
        for var in undefined_vars(expression):
            size = self._inputs.get(var.name)
            least, most = (size.least, size.most) if size else (0, None)
            least = max(least, *(each.get(var.name, least) for each in known))
            extent = (LARGEST if most is None else most) - least + 1
            bounds = tvm.ir.Range.from_min_extent(tirx.const(least, var.ty.dtype), tirx.const(extent, var.ty.dtype))
            analyzer.bind(var, bounds)
        return analyzer


def _times(above: Size, below: Size) -> int | None:
    """Return the number that the quotient of two sizes may be, if it is one: 512 for 512 * n - 3072 and n - 6."""
    if isinstance(above, int) or isinstance(below, int):
        return None
    found = set[int]()
    for value in SAMPLES:
        dividend, divisor = (
            Analyzer().simplify(substitute(size, dict.fromkeys(undefined_vars(size), value))) for size in (above, below)
        )
        if not (isinstance(dividend, tirx.IntImm) and isinstance(divisor, tirx.IntImm) and int(divisor)):
            return None
        found.add(int(dividend) // int(divisor))
    return found.pop() if len(found) == 1 else None


def _divided(test: tirx.Expr) -> tirx.Expr:
    """Return the test n == 2 for n * 32 == 64, and any other test as it is."""
    if isinstance(test, tirx.EQ) and isinstance(test.b, tirx.IntImm) and isinstance(test.a, tirx.Mul):
        size, factor = test.a.a, test.a.b
        if isinstance(factor, tirx.IntImm) and int(factor) and int(test.b) % int(factor) == 0:
            return tirx.EQ(size, as_expr(int(test.b) // int(factor)))
    return test


def _divisors(test: tirx.Expr) -> list[tirx.Expr]:
    """Return the sizes by which a test divides, numbers left out."""
    divisors: list[tirx.Expr] = []
    kinds = (tirx.FloorDiv, tirx.FloorMod, tirx.Div, tirx.Mod)
    tvm_ffi.structural_walk(test, [(kind, lambda part: divisors.append(part.b)) for kind in kinds])
    return [each for each in divisors if not isinstance(each, tirx.IntImm)]


def as_expr(size: Size) -> tirx.Expr:
    """Return a size as an expression of TVM."""
    return tirx.const(size, "int64") if isinstance(size, int) else size


def product(sizes: Iterable[Size]) -> Size:
    """Return the product of sizes; 1 without any."""
    factors = list(sizes)
    result: Size = prod(size for size in factors if isinstance(size, int))
    for size in factors:
        if not isinstance(size, int):
            result = size if isinstance(result, int) and result == 1 else result * size
    return result


def is_number(size: Size, number: int) -> bool:
    """Return whether a size is a number that is known; to compare an expression makes another one."""
    return isinstance(size, int) and size == number


def equal(a: Size, b: Size) -> bool | tirx.Expr:
    """Return the test whether two sizes are equal."""
    return a == b if isinstance(a, int) and isinstance(b, int) else tirx.EQ(as_expr(a), as_expr(b))


def choice(test: tirx.Expr, a: Size, b: Size) -> tirx.Expr:
    """Return the size a if a test holds, else b, by arithmetic: shapes of Relax take no calls of `if_then_else`."""
    return as_expr(b) + (as_expr(a) - as_expr(b)) * tirx.Cast("int64", test)


def without_common(sizes: Iterable[Size], others: Iterable[Size]) -> tuple[list[Size], list[Size]]:
    """Return the sizes and the others without the open sizes that both have: h and 2 for (n, h) and (n, 2)."""
    left, right = list(sizes), list[Size]()
    for other in others:
        same = (i for i, size in enumerate(left) if not isinstance(size, int) and not isinstance(other, int))
        index = next((i for i in same if tvm_ffi.structural_equal(left[i], other)), None)
        if index is None:
            right.append(other)
        else:
            del left[index]
    return left, right


def shape_text(sizes: Iterable[Size]) -> str:
    """Return sizes in words: "(n, 8, h // 2)"."""
    return f"({', '.join(map(python_text, sizes))})"


def python_text(expression: Size) -> str:
    """Return an expression of sizes as an expression of Python: "n // 2 - 2" for "n // T.int64(2) - T.int64(2)"."""
    return re.sub(r"T\.(?:int64|int32|bool)\((-?\w+)\)|T\.(?=\w+\()", r"\1", str(expression))
