"""Finds the last transaction that dropped a table: from the event trigger's messages, and from the archived WAL.

The log names the dropped tables if the source has the event trigger. The WAL has oids instead of names, and capture's
recorded definitions say which table had which name when. What neither of them shows is refused, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tailrace.change import Lsn
from tailrace.errors import ConfigError
from tailrace.log import published_table, schema_record
from tailrace.log.reader import LogReader
from tailrace.recovery import log_moment
from tailrace.recovery.log_moment import Occurrence, TableEvent
from tailrace.recovery.restored_table import Name
from tailrace.recovery.wal_archive import WalArchive
from tailrace.recovery.wal_scan import WalScan
from tailrace.store import Store

_BY_XID: Final = "give --before-xid, or --to with an LSN or a time"


@dataclass(frozen=True)
class FoundDrop:
    occurrences: Sequence[Occurrence]
    """The oldest first. From the WAL, only the last one."""
    source: str
    """Where it was found, for messages."""


@dataclass
class _NamedTable:
    """A table that had the name at some time, as capture recorded it."""

    database: int
    names: list[tuple[Lsn, Name]] = field(default_factory=list)
    """Each with the LSN at which it was read, the oldest first."""

    def name_at(self, lsn: Lsn) -> Name:
        """The last name that was read before an LSN."""
        return next((name for read_at, name in reversed(self.names) if read_at <= lsn), self.names[0][1])


def find_drop(reader: LogReader, event: TableEvent, programs: Callable[[], Path]) -> FoundDrop:
    """The last drop of a table. Raises ConfigError if there is none, or if it is not certain which one is the last.

    Args:
        reader: The log.
        event: The drop.
        programs: Returns where pg_waldump is. It is called if the WAL has to be searched.
    """
    logged = log_moment.find_event(reader, event)
    known = _named_tables(reader.store, event.table)
    if not logged:
        return _find_in_wal(reader, event, known, programs)
    last = logged[-1].lsn
    # The trigger may have been removed or disabled since, so the log alone may miss a later drop of that name.
    later = {oid: each for oid, each in known.items() if any(at > last and n == event.table for at, n in each.names)}
    if later:
        search = _WalSearch.begin(reader.store, later, last, programs)
        if search is not None and (found := search.last_drop(event.table)) is not None and found.lsn > last:
            return FoundDrop([*logged, found], search.source)
        if search is None or search.start > last:
            _require_published(reader.store, event, later, last)
    return FoundDrop(logged, "the log")


def _require_published(store: Store, event: TableEvent, later: Collection[int], last: Lsn) -> None:
    """Refuse unless capture still lists the table that was created after its last logged drop."""
    published = {relation.oid for relation in published_table.load(store)}
    if not published.issuperset(later):
        name = ".".join(event.table)
        raise ConfigError(
            f"{name} was created again after the last drop in the log, and nothing says whether that one was dropped",
            f"--to {last} goes before the drop in the log; otherwise {_BY_XID}",
        )


def _find_in_wal(
    reader: LogReader, event: TableEvent, known: Mapping[int, _NamedTable], programs: Callable[[], Path]
) -> FoundDrop:
    name = ".".join(event.table)
    if not known:
        raise ConfigError(
            f"the log shows no {event}, and capture never recorded a table of that name",
            "drops of tables that were not published are found only with the event trigger that `tailrace check` "
            f"offers; {_BY_XID}",
        )
    search = _WalSearch.begin(reader.store, known, min(_alive_at(reader, known).values()), programs)
    if search is None:
        raise ConfigError(
            f"the log shows no {event}",
            "drops are in the log if the event trigger that `tailrace check` offers was there; without it, they are "
            "found in the WAL that `tailrace archive` stores. "
            f"`restore --table {name} --to latest` restores a dropped table after its last change",
        )
    found = search.last_drop(event.table)
    if found is None:
        where = f"the WAL from {search.start} to {search.end} shows no {event}"
        elsewhere = f"if that was a moment ago, wait for the archive; if it was at another time, {_BY_XID}"
        raise ConfigError(where, "; ".join([*search.other_names, elsewhere]))
    return FoundDrop([found], search.source)


@dataclass
class _WalSearch:
    scan: WalScan
    tables: Mapping[int, _NamedTable]
    start: Lsn
    end: Lsn
    other_names: list[str] = field(default_factory=list)
    """Drops of the tables under another name, as hints."""

    @classmethod
    def begin(
        cls, store: Store, tables: Mapping[int, _NamedTable], start: Lsn, programs: Callable[[], Path]
    ) -> _WalSearch | None:
        """A search from the end of the archive back to `start`, or to the last gap; None if there is no archive."""
        archive = WalArchive.load(store)
        if archive is None or archive.last is None:
            return None
        end, history = archive.last.end, archive.history(archive.last.segment.timeline)
        ranges = list(archive.ranges())
        begins = [r.start for r in ranges if history.timeline_at(r.start) == r.timeline]
        begin = min((at for at in begins if archive.end_after(at, history) == end), default=ranges[-1].start)
        start = min(max(start, begin), end)
        return cls(WalScan(archive, history, start, end, programs()), tables, start, end)

    @property
    def source(self) -> str:
        return f"the WAL, which the archive has up to {self.end}"

    def last_drop(self, name: Name) -> Occurrence | None:
        """The last drop of a table that had the name by then."""
        database = next(iter(self.tables.values())).database
        for record, oid in self.scan.drops(database, self.tables.keys()):
            assert record.committed_at is not None
            found = Occurrence(record.lsn, record.transaction, record.committed_at)
            last_name = self.tables[oid].name_at(record.lsn)
            if last_name == name:
                return found
            text = ".".join(last_name)
            self.other_names.append(f"it was named {text} when it was dropped: --before 'drop of {text}' ({found})")
        return None


def _named_tables(store: Store, name: Name) -> dict[int, _NamedTable]:
    """By oid, the tables that had a name at some time."""
    found: dict[int, _NamedTable] = {}
    for lsn, database, table in _recorded(store):
        found.setdefault(table.oid, _NamedTable(database)).names.append((lsn, (table.schema, table.name)))
    return {oid: each for oid, each in found.items() if any(n == name for _, n in each.names)}


def _recorded(store: Store) -> Iterator[tuple[Lsn, int, schema_record.RecordedTable]]:
    for record in schema_record.load_all(store):
        for table in record.tables:
            yield record.lsn, record.database_oid, table


def _alive_at(reader: LogReader, tables: Mapping[int, _NamedTable]) -> dict[int, Lsn]:
    """LSNs at or before which each of the tables was not dropped: a change of a table precedes its drop.

    A definition does not, to the byte: it may be read while the drop waits for a synchronous standby.
    """
    alive = {oid: each.names[0][0] for oid, each in tables.items()}
    wanted = set(tables)
    for segment in reversed(reader.list()):
        header = segment.metadata()
        if not wanted or header is None or (header.last is not None and header.last.commit_lsn < min(alive.values())):
            break
        if header.first is not None:
            seen = wanted & {use.relation_id for use in header.relations}
            alive.update(dict.fromkeys(seen, header.first.commit_lsn))
            wanted -= seen
    return alive
