"""A store that breaks off: every operation that changes something counts, and the process dies at a given one."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.store import ObjectInfo, Store


class Crash(BaseException):
    """Not an Exception: nobody may catch it and go on."""


class CrashingStore(Store):
    """Dies at the `at`-th change: before it happens, or `after` it has."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        super().__init__(store.url, store._backend)
        self._store = store
        self._left = at
        self._after = after

    def _step(self) -> bool:
        """True when the store dies after what comes now."""
        self._left -= 1
        if self._left == 0 and not self._after:
            raise Crash
        return self._left == 0

    def create(self, key: str, data: bytes) -> bool:
        dies = self._step()
        created = self._store.create(key, data)
        if dies:
            raise Crash
        return created

    def replace(self, key: str, data: bytes) -> None:
        dies = self._step()
        self._store.replace(key, data)
        if dies:
            raise Crash

    def delete(self, key: str) -> None:
        dies = self._step()
        self._store.delete(key)
        if dies:
            raise Crash

    def get(self, key: str) -> bytes | None:
        return self._store.get(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        return self._store.list(prefix, after)
