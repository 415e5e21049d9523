"""`published.json`: the tables that capture publishes, as capture last saw them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from tailrace import stored_json
from tailrace.change import Lsn, Relation
from tailrace.errors import CorruptError
from tailrace.log.snapshot import SnapshotReader
from tailrace.store import Store

KEY: Final = "published.json"


def save(store: Store, relations: Iterable[Relation]) -> None:
    raw = [json.loads(relation.to_json()) for relation in relations]
    store.replace(KEY, json.dumps(raw, ensure_ascii=False).encode())


def load(store: Store) -> Sequence[Relation]:
    """The published tables; empty if capture does not take snapshots by itself."""
    data = store.get(KEY)
    try:
        return [Relation.from_json(json.dumps(raw)) for raw in stored_json.parse(data or b"[]")]
    except stored_json.ERRORS as error:
        raise CorruptError(f"{KEY} is not a file that capture wrote", "remove it: capture writes it again") from error


@dataclass(frozen=True)
class PublishedOids:
    """The oids of the published tables, and when capture listed them. Tables may have been created since."""

    oids: frozenset[int] = frozenset()
    """Empty if capture does not list tables."""
    listed_at_us: int = 0
    """In microseconds since 1970."""

    def is_dropped(self, oid: int, seen_at_us: int) -> bool:
        """Whether a table that existed at a time had been dropped, or unpublished, when capture listed the tables."""
        return bool(self.oids) and oid not in self.oids and self.listed_at_us > seen_at_us


def load_oids(store: Store) -> PublishedOids:
    info = store.head(KEY)
    if info is None:
        return PublishedOids()
    listed_at_us = int(info.modified_at.timestamp() * 1_000_000)
    return PublishedOids(frozenset(relation.oid for relation in load(store)), listed_at_us)


def known_tables(snapshots: SnapshotReader, before: Lsn | None = None) -> Sequence[tuple[Relation, bool]]:
    """Every table, and whether it has a snapshot (at or before an LSN, if one is given).

    The relation is that of the newest such snapshot; for a table without one, it is the published relation.
    """
    copied = {snapshot.relation.oid: snapshot.relation for snapshot in snapshots.newest_of_each(before=before)}
    others = [relation for relation in load(snapshots.store) if relation.oid not in copied]
    return [*((relation, True) for relation in copied.values()), *((relation, False) for relation in others)]
