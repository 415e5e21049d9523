"""Between capture and those who read its log, in the store: which tables there are, and copies that are wanted.

published.json               the tables that are captured, as capture last saw them
wishes/<who>/<oid>.json      a snapshot that somebody wants; capture writes its answer in the same place
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError, TailraceError
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store

_PUBLISHED: Final = "published.json"
_WISHES: Final = "wishes"
_FORGOTTEN: Final = timedelta(hours=1)
"""Whoever asked is gone."""


def publish(store: Store, relations: Iterable[Relation]) -> None:
    raw = [json.loads(relation.to_json()) for relation in relations]
    store.replace(_PUBLISHED, json.dumps(raw, ensure_ascii=False).encode())


def published(store: Store) -> Sequence[Relation]:
    """None are known where capture takes no snapshots by itself."""
    data = store.get(_PUBLISHED)
    try:
        return [Relation.from_json(json.dumps(raw)) for raw in json.loads(data or b"[]")]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{_PUBLISHED}: not what capture writes", "remove it: capture writes it anew") from error


def tables(snapshots: SnapshotReader, before: Lsn | None = None) -> Sequence[tuple[Relation, bool]]:
    """Every table as its newest snapshot has it, or the newest before an LSN; as it is published, where it has none.
    And whether it has one."""
    copied = {snapshot.relation.oid: snapshot.relation for snapshot in snapshots.newest_of_each(before=before)}
    others = [relation for relation in published(snapshots.store) if relation.oid not in copied]
    return [*((relation, True) for relation in copied.values()), *((relation, False) for relation in others)]


@dataclass(frozen=True)
class Wish:
    """For a snapshot of a table; `is_fresh`: one that is taken from now on, whatever there is."""

    who: str
    oid: int
    is_fresh: bool
    asked_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_seen: bool = False
    lsn: Lsn | None = None
    """Of the snapshot."""
    error: str | None = None
    """Why there is none."""
    hint: str = ""

    @property
    def is_answered(self) -> bool:
        return self.lsn is not None or self.error is not None

    @property
    def key(self) -> str:
        return f"{_WISHES}/{self.who}/{self.oid}.json"

    def save(self, store: Store) -> None:
        raw: dict[str, Any] = asdict(self)
        raw |= {"asked_at": self.asked_at.isoformat(), "lsn": None if self.lsn is None else str(self.lsn)}
        store.replace(self.key, json.dumps(raw).encode())

    def now(self, store: Store) -> Wish:
        """With what capture said to it meanwhile."""
        return _load(store, self.key) or self

    def forget(self, store: Store) -> None:
        store.delete(self.key)


def wishes(store: Store) -> Sequence[Wish]:
    """Those that nobody has answered. What nobody came back for is removed."""
    found = []
    for wish in filter(None, [_load(store, info.key) for info in store.list(_WISHES)]):
        if datetime.now(UTC) - wish.asked_at > _FORGOTTEN:
            wish.forget(store)
        elif not wish.is_answered:
            found.append(wish)
    return found


def _load(store: Store, key: str) -> Wish | None:
    data = store.get(key)
    if data is None:
        return None
    try:
        raw = json.loads(data)
        asked_at = datetime.fromisoformat(raw["asked_at"])
        return Wish(**raw | {"asked_at": asked_at, "lsn": None if raw["lsn"] is None else Lsn.parse(raw["lsn"])})
    except (ValueError, KeyError, TypeError, TailraceError) as error:
        raise CorruptError(f"{key}: not a wish for a snapshot", "remove it") from error
