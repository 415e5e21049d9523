"""A store that fails at random in every way a store can: nothing is lost, duplicated or invented.

Capture writes, compaction merges and a reader follows, all through the same faults. `FAULTS` is how many at least, with
each kind among them: `make chaos` runs ten thousand.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.capturing import CaptureThread, Witness, changes_in_log, configured, current_lsn
from tests.fixtures.postgres import Database

from tailrace.change import Change, Lsn, Position
from tailrace.errors import StoreError, TailraceError
from tailrace.log.compaction import compact
from tailrace.log.reader import LogReader
from tailrace.log.verify import verify
from tailrace.retry import Backoff
from tailrace.store import FileStore, ObjectInfo

FAULTS = int(os.environ.get("FAULTS", "120"))
TRANSACTIONS = 20
KINDS = {"error", "slow", "timeout after storing", "truncation", "late listing"}


class RandomFaults(FileStore):
    """A directory whose operations fail at random: before they happen, after they happened, or slowly."""

    def __init__(self, root: Path, seed: int, share: float = 0.2) -> None:
        super().__init__(root)
        self.seen = Counter[str]()
        self._rng = random.Random(seed)
        self._share = share

    def _fault(self, *kinds: str) -> str | None:
        """One of these kinds, or None for an operation that succeeds."""
        if self._rng.random() >= self._share:
            return None
        kind = self._rng.choice(kinds)
        self.seen[kind] += 1
        if kind == "error":
            raise StoreError("unavailable", "")
        if kind == "slow":
            time.sleep(self._rng.uniform(0, 0.01))
        return kind

    def create(self, key: str, data: bytes) -> bool:
        kind = self._fault("error", "slow", "timeout after storing")
        created = super().create(key, data)
        if kind == "timeout after storing":
            raise StoreError("timed out", "")
        return created

    def replace(self, key: str, data: bytes) -> None:
        kind = self._fault("error", "slow", "timeout after storing")
        super().replace(key, data)
        if kind == "timeout after storing":
            raise StoreError("timed out", "")

    def delete(self, key: str) -> None:
        kind = self._fault("error", "slow", "timeout after storing")
        super().delete(key)
        if kind == "timeout after storing":
            raise StoreError("timed out", "")

    def get(self, key: str) -> bytes | None:
        self._fault("error", "slow")
        return super().get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        self._fault("error", "slow")
        return super().get_range(key, start, length)

    def head(self, key: str) -> ObjectInfo | None:
        self._fault("error", "slow")
        return super().head(key)

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        self._fault("error", "slow")
        return super().list(prefix, after)


class LyingStore(RandomFaults):
    """Also cuts what it reads, and lists what was there a moment ago. Only a reader can meet these without harm."""

    def get(self, key: str) -> bytes | None:
        return self._cut(super().get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes | None:
        return self._cut(super().get_range(key, start, length))

    def _cut(self, data: bytes | None) -> bytes | None:
        return data[: self._rng.randrange(len(data))] if data and self._fault("truncation") else data

    def list(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        found = sorted(super().list(prefix, after), key=lambda info: info.key)
        return iter(found[:-1] if self._fault("late listing") else found)


class Follower:
    """Reads the log in order through a lying store, and goes on where it was after each error, with what it cached."""

    def __init__(self, store: LyingStore) -> None:
        self._reader = LogReader(store)
        self.changes: list[Change] = []

    def follow(self) -> None:
        """Read on, up to the first error or the end of the log."""
        try:
            for change in self._reader.changes(self._next()):
                self.changes.append(change)
        except TailraceError:
            return

    def _next(self) -> Position | None:
        if not self.changes:
            return None
        last = self.changes[-1].position
        return Position(last.commit_lsn, last.ordinal + 1)


def _capture(database: Database, store: RandomFaults, connection: psycopg.Connection[Any]) -> None:
    """Capture some transactions, each in a segment of its own, and start again as often as the store prevents that."""
    transactions = TRANSACTIONS
    while True:
        try:
            with CaptureThread(configured(database), store) as run:
                while transactions:
                    transactions -= 1
                    before = current_lsn(connection)
                    connection.execute("INSERT INTO t (note) SELECT 'x' FROM generate_series(1, 5)")
                    run.wait_for(Lsn(before + 1))
                run.wait_for(current_lsn(connection))
            return
        except StoreError:
            continue


def test_random_faults_lose_and_invent_nothing(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tailrace.capture.sealer.Backoff", lambda: Backoff(first=0.001, longest=0.01))
    database.execute("CREATE TABLE t (id serial PRIMARY KEY, note text); CREATE PUBLICATION tailrace FOR TABLE t")
    store, lying = RandomFaults(tmp_path, 1), LyingStore(tmp_path, 2, share=0.05)
    merging = RandomFaults(tmp_path, 3, share=0.01)  # a merge reads many objects, and any fault ends it
    follower = Follower(lying)
    with database.connect(autocommit=True) as connection:
        witness = Witness(connection)
        rounds = merged = 0
        while (seen := store.seen + lying.seen + merging.seen).total() < FAULTS or set(seen) != KINDS:
            rounds += 1
            _capture(database, store, connection)
            for _ in range(TRANSACTIONS):
                follower.follow()
            with suppress(TailraceError):
                merged += compact(merging, older_than=timedelta(0)).merged
        end = current_lsn(connection)
        plain = FileStore(tmp_path)
        with CaptureThread(configured(database), plain) as run:
            run.wait_for(end)
        while len(follower.changes) < len(captured := list(LogReader(plain).changes())):
            follower.follow()
        assert follower.changes == captured
        assert changes_in_log(plain) == witness.changes(end)
        assert not list(verify(plain))
        assert merged > rounds // 2
    print(f"{rounds} rounds: {dict(seen)}, {len(captured):,} changes, {merged:,} objects merged")
