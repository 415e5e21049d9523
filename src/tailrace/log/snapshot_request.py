"""`snapshot_requests/<sink>/<oid>.json`: requests of sinks for a snapshot of a table.

Capture takes the snapshot and writes its reply into the same object.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.store import Store

_PREFIX: Final = "snapshot_requests"
_EXPIRE_AFTER: Final = timedelta(hours=1)
"""By then the sink that made the request is no longer running."""


@dataclass(frozen=True)
class SnapshotRequest:
    sink: str
    oid: int
    is_fresh: bool
    """Only a snapshot taken after the request will do."""
    requested_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_seen: bool = False
    """Capture has read the request."""
    lsn: Lsn | None = None
    """The snapshot's LSN, once it is taken."""
    error: str | None = None
    """Why capture could not take it."""
    hint: str = ""

    @property
    def is_answered(self) -> bool:
        return self.lsn is not None or self.error is not None

    @property
    def key(self) -> str:
        return f"{_PREFIX}/{self.sink}/{self.oid}.json"

    def save(self, store: Store) -> None:
        raw: dict[str, Any] = asdict(self)
        raw |= {"requested_at": self.requested_at.isoformat(), "lsn": None if self.lsn is None else str(self.lsn)}
        store.replace(self.key, json.dumps(raw).encode())

    def reload(self, store: Store) -> SnapshotRequest:
        """The request as it is in the store now, with capture's reply if there is one."""
        return _load(store, self.key) or self

    def delete(self, store: Store) -> None:
        store.delete(self.key)


def pending_requests(store: Store) -> Sequence[SnapshotRequest]:
    """Requests without a reply. Deletes expired requests, answered or not."""
    found = []
    for request in filter(None, [_load(store, info.key) for info in store.list(_PREFIX)]):
        if datetime.now(UTC) - request.requested_at > _EXPIRE_AFTER:
            request.delete(store)
        elif not request.is_answered:
            found.append(request)
    return found


def _load(store: Store, key: str) -> SnapshotRequest | None:
    data = store.get(key)
    if data is None:
        return None
    try:
        raw = stored_json.parse(data)
        requested_at = datetime.fromisoformat(raw["requested_at"])
        lsn = None if raw["lsn"] is None else Lsn.parse(raw["lsn"])
        return stored_json.typed(SnapshotRequest(**raw | {"requested_at": requested_at, "lsn": lsn}))
    except stored_json.ERRORS as error:
        raise CorruptError(f"{key} is not a snapshot request", "remove it") from error
