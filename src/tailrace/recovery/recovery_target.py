"""The moment to which a server is restored, as an operator names it. No I/O."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from tailrace.change import Lsn
from tailrace.errors import ConfigError
from tailrace.log.timestamp import parse_timestamp

_KINDS = (
    "recovery_target",
    "recovery_target_lsn",
    "recovery_target_name",
    "recovery_target_time",
    "recovery_target_xid",
)
_LSN = re.compile(r"[0-9A-Fa-f]{1,8}/[0-9A-Fa-f]{1,8}")


@dataclass(frozen=True, slots=True)
class RecoveryTarget:
    """One moment.

    `lsn` includes all transactions whose commit record begins before it, as everywhere in Tailrace. `time` includes
    those that committed at or before it. `name` is a restore point's. `xid` is the first transaction to leave out.
    `latest` is the end of the archive, or of the log for a table. `immediate` is the end of the newest backup.
    """

    kind: Literal["lsn", "time", "name", "xid", "latest", "immediate"]
    lsn: Lsn | None = None
    time: datetime | None = None
    name: str = ""
    xid: int = 0

    @classmethod
    def parse(cls, text: str) -> RecoveryTarget:
        """Parse an LSN, a time, `latest`, `immediate`, or else the name of a restore point."""
        match text.strip():
            case "latest":
                return cls("latest")
            case "immediate":
                return cls("immediate")
        if not text.strip():
            raise ConfigError("the target is empty", "give a time, an LSN or the name of a restore point")
        if _LSN.fullmatch(text.strip()):
            return cls("lsn", lsn=Lsn.parse(text.strip()))
        try:
            return cls("time", time=parse_timestamp(text.strip()))
        except ValueError:
            return cls("name", name=text)

    def __str__(self) -> str:
        match self.kind:
            case "lsn":
                return str(self.lsn)
            case "time":
                return f"{self.time:%Y-%m-%d %H:%M:%S.%f%z}"
            case "name":
                return f"restore point {self.name!r}"
            case "xid":
                return f"just before transaction {self.xid}"
            case "immediate":
                return "the end of the newest backup"
        return "the end of the archive"


@dataclass(frozen=True, slots=True)
class StopPoint:
    """Where PostgreSQL is told to stop."""

    lsn: Lsn | None
    is_inclusive: bool = False
    """Whether the record that begins at `lsn` is replayed."""
    time: datetime | None = None
    is_immediate: bool = False
    """As soon as the backup is consistent."""

    def settings(self, timeline: int, action: Literal["pause", "promote"]) -> dict[str, str]:
        """The server's settings, in order.

        The kinds of target that are not used are emptied first, because the backup's files may set them, and
        PostgreSQL refuses to touch one kind after it has seen another.
        """
        used = {"recovery_target_lsn": str(self.lsn)}
        if self.time is not None:
            used = {"recovery_target_time": self.time.isoformat()}
        if self.is_immediate:
            used = {"recovery_target": "immediate"}
        return {
            **no_target(but=used),
            **used,
            "recovery_target_inclusive": "on" if self.is_inclusive or self.time is not None else "off",
            "recovery_target_timeline": str(timeline),
            "recovery_target_action": action,
        }


def no_target(but: Collection[str] = ()) -> dict[str, str]:
    """The settings that name no target, for all kinds of target but some."""
    return {name: "" for name in _KINDS if name not in but}
