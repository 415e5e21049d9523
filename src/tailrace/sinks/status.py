"""What a running sink tells of itself: kept in the store beside its cursor, so that anybody may ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Final, Literal

from tailrace.change import Lsn
from tailrace.errors import CorruptError, TailraceError
from tailrace.log.retention import CURSORS
from tailrace.store import Store

Condition = Literal["starting", "loading", "running", "paused", "retrying", "failed", "stopped"]

_STATUS: Final = "status.json"
_WISH: Final = "wish.json"


@dataclass(frozen=True)
class SinkStatus:
    name: str
    type: str
    state: Condition
    cursor: Lsn | None
    """Every change that commits below it is durable at the destination."""
    log_end: Lsn
    """The same of the log."""
    lag_bytes: int | None
    """None when it never ran: where it will begin is not known."""
    lag_seconds: float | None
    """The age of the oldest change that is not delivered; 0 when there is none."""
    changes: int
    """Delivered since the process started."""
    changes_per_second: float
    steps: int
    last_error: str | None
    last_error_hint: str | None
    failures: int
    """Attempts that failed since the process started."""
    recoveries: int
    """Times that it delivered again after failures."""
    last_step_seconds: float
    """How long the last step took."""
    set_aside: int
    """Changes that the destination could not take, kept in the store."""
    updated_at: datetime

    def to_json(self) -> str:
        raw = asdict(self) | {
            "cursor": None if self.cursor is None else str(self.cursor),
            "log_end": str(self.log_end),
            "updated_at": self.updated_at.isoformat(),
        }
        return json.dumps(raw, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: bytes | str, name: str = _STATUS) -> SinkStatus:
        try:
            raw = json.loads(text)
            return cls(
                **raw
                | {
                    "cursor": None if raw["cursor"] is None else Lsn.parse(raw["cursor"]),
                    "log_end": Lsn.parse(raw["log_end"]),
                    "updated_at": datetime.fromisoformat(raw["updated_at"]),
                }
            )
        except (ValueError, KeyError, TypeError, TailraceError) as error:
            raise CorruptError(f"{name}: not a sink's status", "remove it; a running sink writes it anew") from error


def save(store: Store, status: SinkStatus) -> None:
    store.replace(f"{CURSORS}/{status.name}/{_STATUS}", status.to_json().encode())


def load(store: Store, sink: str) -> SinkStatus | None:
    """None when it never ran."""
    key = f"{CURSORS}/{sink}/{_STATUS}"
    data = store.get(key)
    return None if data is None else SinkStatus.from_json(data, key)


def load_all(store: Store) -> Iterator[SinkStatus]:
    """Of every sink that ever ran on this log."""
    for info in store.list(CURSORS):
        parts = info.key.split("/")
        if len(parts) == 3 and parts[2] == _STATUS and (status := load(store, parts[1])) is not None:
            yield status


@dataclass(frozen=True)
class Wish:
    """What an operator last wanted of a sink."""

    is_paused: bool = False
    at: str = ""
    reload: tuple[str, ...] = ()
    """Patterns of tables to load anew; a sink that has done so forgets them."""


def wish(store: Store, sink: str) -> Wish:
    key = f"{CURSORS}/{sink}/{_WISH}"
    data = store.get(key)
    try:
        raw = {} if data is None else json.loads(data)
        return Wish(**raw | {"reload": tuple(raw.get("reload", ()))})
    except (ValueError, TypeError) as error:
        raise CorruptError(f"{key}: not an operator's wish", f"tailrace deliver --resume {sink}") from error


def pause(store: Store, sink: str) -> Wish:
    """Wherever it runs, it stops delivering within seconds, and stays so over restarts until it is resumed."""
    return _save_wish(store, sink, replace(wish(store, sink), is_paused=True))


def resume(store: Store, sink: str) -> Wish:
    """Wherever it runs, it delivers again within seconds, also when it had failed."""
    return _save_wish(store, sink, replace(wish(store, sink), is_paused=False))


def reload(store: Store, sink: str, tables: Sequence[str]) -> Wish:
    """Wherever it runs, it loads these tables anew within seconds, and goes on with the others."""
    before = wish(store, sink)
    return _save_wish(store, sink, replace(before, reload=(*before.reload, *tables)))


def reloaded(store: Store, sink: str, tables: Sequence[str]) -> Wish:
    """It was done."""
    before = wish(store, sink)
    return _save_wish(store, sink, replace(before, reload=tuple([t for t in before.reload if t not in tables])))


def _save_wish(store: Store, sink: str, wanted: Wish) -> Wish:
    wanted = replace(wanted, at=datetime.now(UTC).isoformat())
    store.replace(f"{CURSORS}/{sink}/{_WISH}", json.dumps(asdict(wanted)).encode())
    return wanted
