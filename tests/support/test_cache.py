"""The cache in memory: its limit, and what several threads ask for at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from tvmconv.support.cache import Cache


def test_the_oldest_value_goes_first() -> None:
    cache: Cache[str, int] = Cache(2)
    for number, key in enumerate("abac"):
        assert cache.get_or_make(key, lambda number=number: number) == {"a": 0, "b": 1, "c": 3}[key]  # type: ignore[misc]
    assert (cache.values(), len(cache), cache.get("b"), cache.get("a")) == ((0, 3), 2, None, 0)
    cache.put("a", 4)
    cache.put("d", 5)
    assert (list(cache), cache.values()) == (["a", "d"], (4, 5))
    cache.clear()
    assert len(cache) == 0


def test_threads_wait_for_their_own_key_alone() -> None:
    cache: Cache[str, int] = Cache(9)
    began, go_on, made = Event(), Event(), []

    def slowly() -> int:
        made.append("slow")
        began.set()
        assert go_on.wait(10)
        return 1

    with ThreadPoolExecutor() as pool:
        first = pool.submit(cache.get_or_make, "slow", slowly)
        assert began.wait(10)
        second = pool.submit(cache.get_or_make, "slow", slowly)
        assert cache.get_or_make("quick", lambda: 2) == 2
        assert not first.done()
        assert not second.done()
        go_on.set()
        assert (first.result(10), second.result(10), made) == (1, 1, ["slow"])


def test_a_failure_is_its_own_callers() -> None:
    cache: Cache[str, int] = Cache(9)
    began, fail = Event(), Event()

    def failing() -> int:
        began.set()
        assert fail.wait(10)
        raise OSError("no room")

    with ThreadPoolExecutor() as pool:
        first = pool.submit(cache.get_or_make, "key", failing)
        assert began.wait(10)
        second = pool.submit(cache.get_or_make, "key", lambda: 3)
        fail.set()
        with pytest.raises(OSError, match="no room"):
            first.result(10)
        assert second.result(10) == cache.get("key") == 3
