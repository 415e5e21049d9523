"""The status that a running sink publishes in the store, beside its cursor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from tailrace import stored_json
from tailrace.change import Lsn
from tailrace.errors import CorruptError
from tailrace.log.retention import CURSORS
from tailrace.store import Store

Condition = Literal["new", "starting", "loading", "running", "paused", "retrying", "failed", "stopped"]
"""`new`: configured, and never started."""

SILENT_S: Final = 30.0
"""A running process reports its status every few seconds. One that is silent for so long hangs, or does not run."""
_STALLED_S: Final = 120.0
"""Most steps take less than a second, and the largest seldom more than a minute."""
_STATUS: Final = "status.json"


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
    """None when nobody knows: the log cannot be read, or a sink that never ran begins at the log's end."""
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
    dead_letters: int
    """Changes that the destination could not take, kept in the store."""
    updated_at: datetime
    batches: int = 0
    """Batches with changes that Spark reported since the process started."""
    batch_rows: int = 0
    """The rows that Spark read in them: one for each change."""
    last_batch_seconds: float | None = None
    """How long the last of them took; one that stays open for several steps takes up to ten seconds."""
    load_rows: int | None = None
    """Rows of snapshots that are loaded so far, as the tasks report them; None if nothing is being loaded."""
    load_total_rows: int | None = None
    load_seconds_left: float | None = None
    """Estimated; None if nobody can tell."""
    latency_seconds: float | None = None
    """From the commit at the source, by its clock, until the change was durable at the destination: of the oldest
    change in the last step. None if no step has delivered changes since the process started."""
    seal_latency_seconds: float | None = None
    """The same from when the store got the change's segment, by the store's clock. None also if nobody knows."""
    stalled_seconds: float | None = None
    """For how long no step has ended and no row was loaded, although there is something to deliver; None if there is
    not."""

    @classmethod
    def initial(cls, name: str, type: str, state: Condition) -> SinkStatus:
        """Return the status of a sink that nothing is known of yet."""
        return cls(
            name=name,
            type=type,
            state=state,
            cursor=None,
            log_end=Lsn(0),
            lag_bytes=None,
            lag_seconds=None,
            changes=0,
            changes_per_second=0.0,
            steps=0,
            last_error=None,
            last_error_hint=None,
            failures=0,
            recoveries=0,
            last_step_seconds=0.0,
            dead_letters=0,
            updated_at=datetime.now(UTC),
        )

    def is_silent(self, now_s: float) -> bool:
        """Whether the sink should have published another status since."""
        return self.state not in ("new", "stopped") and now_s - self.updated_at.timestamp() > SILENT_S

    @property
    def is_stalled(self) -> bool:
        """Whether its destination is very slow, or delivery to it hangs while its process goes on."""
        return self.state in ("starting", "loading", "running") and (self.stalled_seconds or 0) > _STALLED_S

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
            raw = stored_json.parse(text)
            parsed = {
                "cursor": None if raw["cursor"] is None else Lsn.parse(raw["cursor"]),
                "log_end": Lsn.parse(raw["log_end"]),
                "updated_at": datetime.fromisoformat(raw["updated_at"]),
            }
            return stored_json.typed(cls(**raw | parsed))
        except stored_json.ERRORS as error:
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
