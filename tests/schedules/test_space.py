"""The listing of a space passes over what fails for one reason, and is that of trying every combination."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

import pytest

from tvmconv.schedules.space import passing


@dataclass(frozen=True)
class Tile:
    rows: int
    columns: int
    depth: int
    staged: bool

    @property
    def area(self) -> int:
        return self.rows * self.columns


Test = Callable[[Tile], bool]

KNOBS = {"rows": (1, 2, 4, 3), "columns": (1, 2, 8), "depth": (5, 1, 3), "staged": (True, False)}
DEFAULT = Tile(1, 1, 5, True)


def every(*tests: Test) -> list[Tile]:
    tiles = [Tile(*values) for values in product(*KNOBS.values())]
    return [tile for tile in tiles if all(test(tile) for test in tests)]


@pytest.mark.parametrize(
    "tests",
    [
        (),
        (lambda tile: False,),
        (lambda tile: tile.area <= 8, lambda tile: tile.depth < 5),
        (lambda tile: tile.staged or tile.area > 4, lambda tile: not tile.staged or tile.depth == 3),  # reads differ
        (lambda tile: tile != Tile(2, 2, 1, True),),
        (lambda tile: replace(tile, depth=tile.rows) in {Tile(2, 8, 2, False), Tile(4, 1, 4, True)},),
        (lambda tile: sum(vars(tile).values()) % 2 == 0,),
    ],
    ids=["all", "none", "parts", "branches", "equal", "replaced", "values"],
)
def test_the_combinations_are_those_of_trying_each(tests: tuple[Test, ...]) -> None:
    assert passing(DEFAULT, KNOBS, tests, ()) == every(*tests)
    assert passing(DEFAULT, KNOBS, (), tests) == every(*tests)


def test_the_configurations_are_of_the_type_of_the_default() -> None:
    assert {type(tile) for tile in passing(DEFAULT, KNOBS, (), ())} == {Tile}


def test_a_failure_passes_over_what_fails_for_the_same_reason() -> None:
    asked = []

    def small(tile: Tile) -> bool:
        asked.append(tile.area)
        return tile.area <= 2

    assert len(passing(DEFAULT, KNOBS, [small], ())) == 3 * len(KNOBS["depth"]) * 2
    assert len(asked) == 1 + len(KNOBS["rows"]) * len(KNOBS["columns"])  # once for what it reads


def test_the_costly_are_asked_of_what_passes_all_others() -> None:
    asked = []

    def model(tile: Tile) -> bool:
        asked.append((tile.depth, tile.area))
        return True

    passing(DEFAULT, KNOBS, [lambda tile: tile.area == 6, lambda tile: tile.depth == 1], [model])
    assert asked == [(1, 6)]
