"""Knobs of templates of one's own: the values of each definition, and definitions that are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tvm import te
from tvm.s_tir import Schedule

from tvmconv.autotvm import ConfigSpace, FallbackConfigEntity, OtherOptionEntity
from tvmconv.autotvm.templates import config_space
from tvmconv.problem.errors import InvalidArgumentError


def sizes(extent: Any, **options: Any) -> list[tuple[int, ...]]:
    space = ConfigSpace()
    space.define_split("tile", extent, **options)
    return [entity.size for entity in space.knobs["tile"]]


def values(define: Callable[[ConfigSpace], object]) -> list[Any]:
    space = ConfigSpace()
    define(space)
    (entities,) = space.knobs.values()
    return [entity.value for entity in entities]


def test_splits_are_those_of_autotvm_in_its_order() -> None:
    assert sizes(6, num_outputs=2) == [(-1, 1), (-1, 2), (-1, 3), (-1, 6)]
    assert sizes(4, num_outputs=3) == [(-1, 1, 1), (-1, 2, 1), (-1, 4, 1), (-1, 1, 2), (-1, 2, 2), (-1, 1, 4)]
    assert sizes(6, policy="power2", num_outputs=2) == [(-1, 1), (-1, 2), (-1, 4)]
    assert sizes(6, policy="verbose", num_outputs=2) == [(-1, 1), (-1, 2), (-1, 3), (-1, 4), (-1, 6)]
    assert sizes(6, policy="verbose", num_outputs=2, no_tail=True) == [(-1, 1), (-1, 2), (-1, 3), (-1, 6)]
    assert sizes(64, num_outputs=2, max_factor=4) == [(-1, 1), (-1, 2), (-1, 4)]
    assert sizes(64, num_outputs=2, filter=lambda tile: tile.size[-1] > 16) == [(-1, 32), (-1, 64)]
    assert sizes(8, policy="candidate", candidate=[[2, 4], [-1, 2], [-1, 3]]) == [(2, 4), (-1, 2), (-1, 3)]
    assert sizes(7, num_outputs=1) == [(-1,)]


def test_what_has_an_extent() -> None:
    a = te.placeholder((6, 4), name="A")
    b = te.compute((6, 4), lambda i, j: a[i, j] + 1, name="B")
    sch = Schedule(te.create_prim_func([a, b]))
    y, _ = sch.get_loops(sch.get_sblock("B"))
    for axis in (6, b.op.axis[0], sch.get(y), ConfigSpace.axis(6), a.shape[0]):
        assert len(sizes(axis, num_outputs=2)) == 4
    for wrong in (y, a, 0, -3, True, "6"):
        with pytest.raises(InvalidArgumentError, match=r"axis of 'tile' is .*; expected an extent"):
            sizes(wrong, num_outputs=2)


def test_reorders() -> None:
    def orders(policy: str, **options: Any) -> list[Any]:
        return values(lambda space: space.define_reorder("order", list("abcd"), policy, **options))

    assert orders("identity") == [(0, 1, 2, 3)]
    assert len(orders("all")) == 24
    assert orders("interval_all", interval=(1, 3)) == [(0, 1, 2, 3), (0, 2, 1, 3)]
    assert orders("candidate", candidate=["abcd", "dcba"]) == [(0, 1, 2, 3), (3, 2, 1, 0)]
    assert orders("interleave", spatial=["ab"], reduce=["cd"]) == [(0, 2, 1, 3)]
    assert orders("interleave_cuda", spatial=["ab"], reduce=["cd"]) == [(0, 2, 3, 1)]


def test_annotations() -> None:
    def annotations(policy: str, count: int, **options: Any) -> list[Any]:
        return values(lambda space: space.define_annotate("ann", list(range(count)), policy, **options))

    assert annotations("bind_gpu", 3) == [("fuse", "blockIdx.x", "threadIdx.x")]
    assert annotations("bind_gpu_virtual", 3) == [("blockIdx.x", "vthread.x", "threadIdx.x")]
    assert annotations("locate_cache", 3, num_anchor=2) == [(0, 1), (0, 2), (1, 2)]
    assert annotations("try_unroll", 2) == [("none", "none"), ("none", "unroll"), ("unroll", "none"), ("unroll",) * 2]
    assert ("vec", "vec") not in annotations("try_unroll_vec", 2)
    assert len(annotations("try_unroll_vec", 2)) == 8


REFUSED: dict[str, tuple[Callable[[ConfigSpace], object], str]] = {
    "policy": (lambda cfg: cfg.define_split("s", 8, "halves", num_outputs=2), "policy of 's' is 'halves'"),
    "no-num-outputs": (lambda cfg: cfg.define_split("s", 8), "num_outputs of 's' is None"),
    "filter-leaves-nothing": (
        lambda cfg: cfg.define_split("s", 8, num_outputs=2, filter=lambda tile: tile.size[1] > 8),
        "split 's' of 8 is 'factors'; expected a policy and a filter that leave a split",
    ),
    "does-not-divide": (
        lambda cfg: cfg.define_split("s", 8, "candidate", candidate=[[2, 3]]),
        r"candidate of 's' is \[2, 3\]; expected positive sizes whose product is 8",
    ),
    "tail": (
        lambda cfg: cfg.define_split("s", 8, "candidate", candidate=[[-1, 3]], no_tail=True),
        r"candidate of 's' is \[-1, 3\]",
    ),
    "too-large": (lambda cfg: cfg.define_split("s", 8, "candidate", candidate=[[-1, 9]]), r"is \[-1, 9\]"),
    "two-unknown": (lambda cfg: cfg.define_split("s", 8, "candidate", candidate=[[-1, -1]]), r"is \[-1, -1\]"),
    "no-candidates": (lambda cfg: cfg.define_split("s", 8, "candidate"), "expected a list of splits"),
    "other-length": (
        lambda cfg: cfg.define_split("s", 8, "candidate", candidate=[[2, 4]], num_outputs=3),
        "expected 3 sizes",
    ),
    "order-of-others": (
        lambda cfg: cfg.define_reorder("r", ["a", "b"], "candidate", candidate=[["a", "c"]]),
        "reorder 'r' is 'c'; expected one of its axes",
    ),
    "order-of-some": (
        lambda cfg: cfg.define_reorder("r", ["a", "b"], "candidate", candidate=[["a", "a"]]),
        "expected an order of all 2 axes",
    ),
    "reorder-policy": (lambda cfg: cfg.define_reorder("r", ["a"], "some"), "policy of 'r' is 'some'"),
    "annotate-policy": (lambda cfg: cfg.define_annotate("n", ["a"], "unrolled"), "policy of 'n' is 'unrolled'"),
    "too-few-to-bind": (lambda cfg: cfg.define_annotate("n", ["a"], "bind_gpu"), "at least 2 for bind_gpu"),
    "no-values": (lambda cfg: cfg.define_knob("k", []), r"candidate of 'k' is \[\]; expected at least one"),
    "equal-values": (lambda cfg: cfg.define_knob("k", [1, 2, 1]), "expected values that differ"),
    "value-of-another-kind": (lambda cfg: cfg.define_knob("k", [[1]]), r"candidate of 'k' is \[1\]; expected numbers"),
    "twice": (lambda cfg: [cfg.define_knob("k", [1]) for _ in range(2)], "name is 'k'; expected one that no other"),
    "unknown-knob": (lambda cfg: cfg["nope"], "knob is 'nope'; expected one of those defined before"),
    "index": (lambda cfg: cfg.get(1), "index is 1; expected a number from 0 to 0"),
}


@pytest.mark.parametrize(("define", "message"), REFUSED.values(), ids=REFUSED)
def test_refused(define: Callable[[ConfigSpace], object], message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        define(ConfigSpace())


def space_of(count: int) -> ConfigSpace:
    space = ConfigSpace()
    space.define_split("tile", 6, num_outputs=2)
    space.define_knob("flag", [False, True])
    space.define_knob("number", list(range(count)))
    return space


def test_numbers_of_configurations_are_those_of_autotvm() -> None:
    space = space_of(3)
    assert len(space) == len(space.configs) == 4 * 2 * 3
    assert [space.number(config) for config in space.configs] == list(range(24))
    config = space.get(3 + 4 * 1 + 8 * 2)
    assert (config["tile"].size, config["flag"].val, config["number"].val) == ((-1, 6), True, 2)
    assert space.configured({name: value for name, _, value in config.entity}) == config
    assert config in space
    assert config.entity == (("tile", "sp", (-1, 6)), ("flag", "ot", True), ("number", "ot", 2))
    with pytest.raises(InvalidArgumentError, match="knob is 'nope'; expected one of tile, flag, number"):
        config["nope"]


def test_a_large_space_is_sampled_and_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = 5_000
    monkeypatch.setattr(config_space, "LISTED", listed)
    space = space_of(10**5)
    assert len(space) == 8 * 10**5
    assert len(space.configs) > 0.99 * listed
    assert len(set(space.configs)) == len(space.configs)
    assert space.configs[0] == space.default == space.get(0)
    assert space.configs == space_of(10**5).configs
    last = space.get(len(space) - 1)
    assert last in space


def test_knobs_of_a_record_have_to_be_those_of_the_space() -> None:
    space = space_of(3)
    knobs = {"tile": (-1, 2), "flag": True, "number": 1}
    assert space.configured(knobs).index == 1 + 4 + 8
    for wrong, message in (
        ({**knobs, "more": 1}, r"knobs is \['more'\]; expected exactly tile, flag, number"),
        ({"tile": (-1, 2)}, r"knobs is \['flag', 'number'\]"),
        ({**knobs, "tile": (-1, 5)}, r"knob 'tile' is \(-1, 5\); expected one of \[-1, 1\], "),
        ({**knobs, "flag": 1}, "knob 'flag' is 1; expected one of False, True"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            space.configured(wrong)


def test_what_a_template_chooses_without_a_record() -> None:
    cfg = FallbackConfigEntity()
    for extent in (128, 49):
        cfg.define_split(f"of_{extent}", extent, num_outputs=3)
        cfg.fallback_split(f"of_{extent}", [-1, 8, 4])
    cfg.define_knob("unroll", [0, 16])
    assert (cfg["of_128"].size, cfg["of_49"].size, cfg["unroll"].val) == ((4, 8, 4), (7, 7, 1), 0)
    cfg["unroll"] = OtherOptionEntity(16)
    assert (cfg["unroll"].val, cfg.is_fallback, cfg.get(0).is_fallback) == (16, True, False)
    with pytest.raises(InvalidArgumentError, match=r"constraints of 'unroll' is \[1\]; expected one for each loop"):
        cfg.fallback_split("unroll", [1])
    with pytest.raises(InvalidArgumentError, match="knob is 'nope'"):
        cfg["nope"] = OtherOptionEntity(16)


def test_the_values_of_a_template_that_runs_with_a_configuration_stay() -> None:
    config = space_of(3).get(5)
    assert [axis.number for axis in config.define_split("tile", 6, num_outputs=2)] == [0, 1]
    assert config.define_knob("number", [7]) == []
    assert config["tile"].size == (-1, 2)
    config.raise_error("too much")
    assert not config.valid()
