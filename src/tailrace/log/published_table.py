"""`published.json`: the tables that capture publishes, as capture last saw them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Final

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
        return [Relation.from_json(json.dumps(raw)) for raw in json.loads(data or b"[]")]
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptError(f"{KEY} is not a file that capture wrote", "remove it: capture writes it again") from error


def known_tables(snapshots: SnapshotReader, before: Lsn | None = None) -> Sequence[tuple[Relation, bool]]:
    """Every table, and whether it has a snapshot (at or before an LSN, if one is given).

    The relation is that of the newest such snapshot; for a table without one, it is the published relation.
    """
    copied = {snapshot.relation.oid: snapshot.relation for snapshot in snapshots.newest_of_each(before=before)}
    others = [relation for relation in load(snapshots.store) if relation.oid not in copied]
    return [*((relation, True) for relation in copied.values()), *((relation, False) for relation in others)]
