"""The results of drills in the store."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.store import Store

_PREFIX: Final = "drills"
# A year of daily drills and more; older ones tell nothing.
_KEPT: Final = 400


@dataclass(frozen=True, slots=True)
class TableDifference:
    table: str
    key: str
    kind: Literal["missing", "unexpected", "different"]
    """Of the restored server's row, compared with the change log's."""


@dataclass(frozen=True)
class DrillRecord:
    """`drills/<time>.json`: what one drill found."""

    at: datetime
    """When it began."""
    verdict: Literal["equal", "different", "failed"]
    """`failed`: the server could not be restored, or nothing could be compared."""
    lsn: Lsn | None = None
    """The moment to which the server was restored; None if no moment could be chosen."""
    backup: str | None = None
    tables: int = 0
    """Tables that were compared."""
    rows: int = 0
    restore_seconds: float = 0.0
    """From the start of the drill until the server had reached the moment."""
    seconds: float = 0.0
    """All of it, with the comparison."""
    differences: Sequence[TableDifference] = ()
    """The first ones."""
    is_listed: bool = True
    """Whether `differences` has all of them."""
    not_compared: Sequence[tuple[str, str]] = ()
    """Tables that the change log does not know at that moment, each with the reason."""
    error: str | None = None

    def save(self, store: Store) -> None:
        raw: dict[str, Any] = {"version": 1} | asdict(self)
        raw |= {"at": self.at.isoformat(), "lsn": None if self.lsn is None else str(self.lsn)}
        store.replace(f"{_PREFIX}/{self.at:%Y%m%dT%H%M%S.%fZ}.json", json.dumps(raw, indent=2).encode())
        for key in _keys(store)[:-_KEPT]:
            store.delete(key)

    @classmethod
    def last(cls, store: Store) -> Self | None:
        """The newest drill; None if there was none."""
        keys = _keys(store)
        data = store.get(keys[-1]) if keys else None
        return None if data is None else cls._from_json(data, f"{store.url}: {keys[-1]}")

    @classmethod
    def _from_json(cls, data: bytes, where: str) -> Self:
        try:
            raw = stored_json.parse(data)
            if raw.pop("version") != 1:
                raise ValueError
            parsed = {
                "at": datetime.fromisoformat(raw["at"]),
                "lsn": None if raw["lsn"] is None else Lsn.parse(raw["lsn"]),
                "differences": tuple(TableDifference(**each) for each in raw["differences"]),
                "not_compared": tuple((table, reason) for table, reason in raw["not_compared"]),
            }
            return stored_json.typed(cls(**raw | parsed))
        except stored_json.ERRORS as error:
            raise CorruptError(f"{where} is not a drill's record", "remove it, and run `tailrace drill`") from error


def _keys(store: Store) -> list[str]:
    return [info.key for info in store.list(_PREFIX)]
