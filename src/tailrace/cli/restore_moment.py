"""The options of `tailrace restore` that name a moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment
from tailrace.recovery.log_moment import Occurrence, TableEvent
from tailrace.recovery.recovery_target import RecoveryTarget


@dataclass(frozen=True)
class MomentOptions:
    to: str | None
    event: str | None
    before_xid: int | None
    latest: bool

    def target(self, reader: LogReader, programs: Path | None) -> RecoveryTarget:
        """The target that the options name. An event is looked up, and what was found is printed.

        `programs` is where pg_waldump is, if the archive may be searched too.
        """
        given = [self.to is not None, self.event is not None, self.before_xid is not None, self.latest]
        if sum(given) != 1:
            raise ConfigError("one target is needed", "give --to, --before, --before-xid or --latest")
        if self.event is not None:
            return RecoveryTarget("lsn", lsn=_find(reader, TableEvent.parse(self.event), programs).lsn)
        if self.before_xid is not None:
            return RecoveryTarget("xid", xid=self.before_xid)
        return RecoveryTarget.parse(self.to) if self.to is not None else RecoveryTarget("latest")


def _find(reader: LogReader, event: TableEvent, programs: Path | None) -> Occurrence:
    found: Sequence[Occurrence] = log_moment.find_event(reader, event)
    source = "the log"
    if not found and event.kind == "drop" and programs is not None:
        in_wal = log_moment.find_dropped_in_wal(reader, event, programs)
        found, source = ([in_wal], "the WAL: its last exclusive lock") if in_wal is not None else ([], source)
    if not found:
        raise ConfigError(f"the log shows no {event}", _hint(event, reader))
    click.echo(f"{event}: {found[-1]}, found in {source}")
    for earlier in list(reversed(found))[1:5]:
        click.echo(f"    earlier: {earlier} (--to {earlier.lsn} goes before it)")
    return found[-1]


def _hint(event: TableEvent, reader: LogReader) -> str:
    if event.kind != "drop":
        return log_moment.range_text(reader)
    name = ".".join(event.table)
    return (
        "drops are in the log if the event trigger that `tailrace check` offers was there; without it, they are found "
        f"in the archived WAL. `restore --table {name} --to latest` restores a dropped table after its last change"
    )
