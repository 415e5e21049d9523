"""A store that simulates a crash of the process at a given write or delete."""

from __future__ import annotations

from collections.abc import Iterator

from tailrace.store import ObjectInfo, Store


class Crash(BaseException):
    """Not an Exception, so that no code catches it and continues."""


class CrashingStore(Store):
    """Crashes at the `at`-th write or delete: before it happens, or `after` it."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        super().__init__(store.url, store._backend)
        self._store = store
        self._left = at
        self._after = after

    def _step(self) -> bool:
        """Whether to crash after the operation."""
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
