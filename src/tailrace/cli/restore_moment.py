"""The options of `tailrace restore` that name a moment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from tailrace.errors import ConfigError
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment, table_drop
from tailrace.recovery.log_moment import Occurrence, TableEvent
from tailrace.recovery.recovery_target import RecoveryTarget


@dataclass(frozen=True)
class MomentOptions:
    to: str | None
    event: str | None
    before_xid: int | None
    latest: bool

    def target(
        self, reader: LogReader, programs: Callable[[], Path], say: Callable[[str], None] = click.echo
    ) -> RecoveryTarget:
        """The target that the options name. An event is looked up, and `say` prints what was found.

        `programs` returns where pg_waldump is, if the archive has to be searched.
        """
        given = [self.to is not None, self.event is not None, self.before_xid is not None, self.latest]
        if sum(given) != 1:
            raise ConfigError("one target is needed", "give --to, --before, --before-xid or --latest")
        if self.event is not None:
            return RecoveryTarget("lsn", lsn=_find(reader, TableEvent.parse(self.event), programs, say).lsn)
        if self.before_xid is not None:
            return RecoveryTarget("xid", xid=self.before_xid)
        return RecoveryTarget.parse(self.to) if self.to is not None else RecoveryTarget("latest")


def _find(reader: LogReader, event: TableEvent, programs: Callable[[], Path], say: Callable[[str], None]) -> Occurrence:
    if event.kind == "drop":
        drop = table_drop.find_drop(reader, event, programs)
        found, source = drop.occurrences, drop.source
    else:
        found, source = log_moment.find_event(reader, event), "the log"
    if not found:
        raise ConfigError(f"the log shows no {event}", log_moment.range_text(reader))
    say(f"{event}: {found[-1]}, found in {source}")
    for earlier in list(reversed(found))[1:5]:
        say(f"    earlier: {earlier} (--to {earlier.lsn} goes before it)")
    return found[-1]
