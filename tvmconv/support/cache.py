"""A bounded cache for several threads: of compiled kernels, and of prepared calls."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from threading import Event, Lock
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Values by keys, at most `limit` of them: in a full cache a value that is added replaces the oldest one.

    A value is as old as its last `get_or_make` or `put`; `get` takes no lock and leaves the age, so that it costs no
    more than a look into a dict.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: dict[K, V] = {}
        self._underway: dict[K, Event] = {}
        self._lock = Lock()
        self.get: Callable[[K], V | None] = self._values.get
        """Return the value of a key; None without one. It is the dict's own function, for each call of a kernel."""

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[K]:
        """Iterate over the keys, the oldest first."""
        return iter(list(self._values))

    def values(self) -> tuple[V, ...]:
        """Return the values, the oldest first."""
        return tuple(self._values.values())

    def put(self, key: K, value: V) -> V:
        """Add a value, or replace that of its key, and return it."""
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = value
            while len(self._values) > self._limit:
                del self._values[next(iter(self._values))]
        return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, which is made where there is none yet.

        Of several threads that ask for one key a single one makes the value, and the others wait for it; nobody waits
        for another key. If `make` raises, its caller gets the error, and one of the threads that wait tries again.
        """
        while True:
            with self._lock:
                if key in self._values:
                    value = self._values[key] = self._values.pop(key)
                    return value
                other = self._underway.get(key)
                if other is None:
                    event = self._underway[key] = Event()
                    break
            other.wait()
        try:
            return self.put(key, make())
        finally:
            with self._lock:
                del self._underway[key]
            event.set()

    def clear(self) -> None:
        """Forget all values."""
        with self._lock:
            self._values.clear()
