"""Proves that the server can be restored: restores a random logged moment, and compares every published table.

The restored server comes from a backup and the archived WAL, the expected rows from a snapshot and the change log.
The two have nothing in common but the source, and the same LSN means the same moment in both.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import ExecStatus

from tailrace import postgres
from tailrace.capture.postgres import snapshot_plan
from tailrace.capture.postgres.snapshot_plan import TablePlan
from tailrace.capture.postgres.source_error import classify, source_errors
from tailrace.change import Lsn
from tailrace.errors import ConfigError, GapError, SnapshotError, SourceError, TailraceError
from tailrace.log.reader import LogReader
from tailrace.log.snapshot import SnapshotReader
from tailrace.postgres import copy_text
from tailrace.recovery import restore, row_comparison
from tailrace.recovery.data_directory import DataDirectory
from tailrace.recovery.drill_record import DrillRecord, TableDifference
from tailrace.recovery.recovery_server import RecoveryServer
from tailrace.recovery.recovery_target import RecoveryTarget
from tailrace.recovery.restore_plan import plan_restore, restorable_ranges
from tailrace.settings import Settings, SourceSettings
from tailrace.state import postgres_text, retyping, table_state
from tailrace.store import Store

# Text of COPY is handed on in pieces of about this size.
_PIECE_BYTES: Final = 1 << 20
# More would only repeat what the first ones say.
_MOST_DIFFERENCES: Final = 100
# The copy is promoted, because a paused one keeps the locks of transactions that were open at that moment. Without
# workers, nothing of the source's own starts on it: no subscription, no scheduled job. Below the source's number of
# workers, PostgreSQL recovers only without hot standby. The copy is thrown away, so it need not be durable.
_COPY_SETTINGS: Final = {
    "hot_standby": "off",
    "max_worker_processes": "0",
    "max_logical_replication_workers": "0",
    "autovacuum": "off",
    "fsync": "off",
}


@dataclass
class DrillProgress:
    """What the drill does now, for display."""

    phase: str = "choosing a moment"
    rows: int = 0


@dataclass
class Drill:
    """One drill.

    Args:
        settings: The source names the database and the publication. It is not contacted.
        store: The store with the archive, the backups and the log.
        directory: An empty directory for the copy, which belongs to the user that runs PostgreSQL.
        bin_directory: Where PostgreSQL's programs are.
        lsn: The moment. Default: a random one that the log knows.
        operator_settings: Settings of the copy, over those of its files.
    """

    settings: Settings
    store: Store
    directory: Path
    bin_directory: Path
    lsn: Lsn | None = None
    is_cancelled: Callable[[], bool] = lambda: False
    progress: DrillProgress = field(default_factory=DrillProgress)
    operator_settings: Mapping[str, str] = field(default_factory=dict)

    def run(self) -> DrillRecord:
        """Run the drill, store its result and return it. A restore that fails is a result, too."""
        began, at = time.monotonic(), datetime.now(UTC)
        record = DrillRecord(at, "failed")
        try:
            lsn = self.lsn if self.lsn is not None else choose_moment(self.store)
            record = replace(record, lsn=lsn)
            plan = plan_restore(self.store, RecoveryTarget("lsn", lsn=lsn), self.bin_directory)
            record = replace(record, backup=plan.backup.id)
            tablespaces = {each.oid: self.directory / f"space-{each.oid}" for each in plan.backup.tablespaces}
            copy = DataDirectory(self.directory / "data", tablespaces)
            self.progress.phase = f"restoring {lsn}"
            self._own_children(copy)
            restore.write_directory(self.store, plan, copy)
            with restore.recovering(
                plan, copy, self.bin_directory, "promote", _COPY_SETTINGS, self.operator_settings
            ) as recovery:
                recovery.wait(self.is_cancelled)
                record = replace(record, restore_seconds=time.monotonic() - began)
                record = self._compare(recovery.server, record, lsn)
        except TailraceError as error:
            if self.is_cancelled():
                raise
            record = replace(record, verdict="failed", error=f"{error}: {error.hint}" if error.hint else str(error))
        record = replace(record, seconds=time.monotonic() - began)
        record.save(self.store)
        return record

    def _own_children(self, copy: DataDirectory) -> None:
        """Create the copy's directories for the owner of the drill's."""
        owner = DataDirectory(self.directory)
        for path in (copy.path, *copy.tablespaces.values()):
            path.mkdir()
            owner.own(path)

    def _compare(self, server: RecoveryServer, record: DrillRecord, lsn: Lsn) -> DrillRecord:
        reader = LogReader(self.store)
        differences: list[TableDifference] = []
        not_compared: list[tuple[str, str]] = []
        tables = rows = 0
        is_listed = is_equal = True
        with _connect(server, self.settings) as connection:
            for plan in _published(connection, self.settings.source.publication):
                name = plan.relation.qualified_name
                self.progress.phase = f"comparing {name}"
                try:
                    expected = _LoggedRows(reader, plan, lsn)
                except (SnapshotError, GapError) as error:
                    not_compared.append((name, str(error)))
                    continue
                keys = [index for index, c in enumerate(plan.relation.columns) if c.name in plan.relation.key]
                found = row_comparison.compare(expected, _RestoredRows(connection, plan), keys)
                tables += 1
                rows += found.rows
                self.progress.rows = rows
                is_equal = is_equal and found.is_equal
                is_listed = is_listed and found.is_listed
                differences += [TableDifference(name, each.key, each.kind) for each in found.differences]
                if self.is_cancelled():
                    raise SourceError("the drill was cancelled")
        if not tables:
            raise ConfigError(
                f"no published table could be compared at {lsn}",
                "take snapshots with `tailrace snapshot`; a drill needs one from before its moment",
            )
        return replace(
            record,
            verdict="equal" if is_equal else "different",
            tables=tables,
            rows=rows,
            differences=tuple(differences[:_MOST_DIFFERENCES]),
            is_listed=is_listed and len(differences) <= _MOST_DIFFERENCES,
            not_compared=tuple(not_compared),
        )


def choose_moment(store: Store) -> Lsn:
    """The LSN of a random commit that the log has and that can be restored."""
    reader = LogReader(store)
    snapshots = [snapshot.lsn for snapshot in SnapshotReader(store).list()]
    if not snapshots:
        raise ConfigError(
            "the log has no snapshot to compare with", "run `tailrace capture`, and wait until it has copied the tables"
        )
    begin, end = min(snapshots), reader.end_lsn()
    ranges = [(max(first, begin), min(last, end)) for first, last in restorable_ranges(store)]
    possible = [(first, last) for first, last in ranges if first <= last]
    if not possible:
        raise ConfigError(
            f"no moment is both in the log, which has {begin} to {end}, and in the archive with its backups",
            "keep capture and archive running, and take a backup",
        )
    segments = reader.list()
    random.shuffle(segments)
    for segment in segments:
        header = segment.metadata()
        if header is None or header.first is None or header.last is None:
            continue
        within = [r for r in possible if r[0] <= header.last.commit_lsn and header.first.commit_lsn <= r[1]]
        if within:
            content = segment.content()
            assert content is not None
            commits = {Lsn(lsn) for lsn in content.rows.commit_lsn if any(a <= lsn <= b for a, b in within)}
            if commits:
                return random.choice(sorted(commits))  # noqa: S311 (any moment will do)
    return possible[-1][1]  # nothing was committed since


def _connect(server: RecoveryServer, settings: Settings) -> psycopg.Connection[Any]:
    """Connect as a superuser, and roll back transactions that were only prepared by then: they hold locks."""
    given = conninfo_to_dict(settings.source.url)
    url = server.conninfo(str(given.get("dbname") or given.get("user") or "postgres"))
    with source_errors():
        connection = postgres.connection.connect(SourceSettings(url=url))
        query = "SELECT gid FROM pg_catalog.pg_prepared_xacts WHERE database = pg_catalog.current_database()"
        for (gid,) in connection.execute(query).fetchall():
            connection.execute(sql.SQL("ROLLBACK PREPARED {}").format(sql.Literal(gid)))
        return connection


def _published(connection: psycopg.Connection[Any], publication: str) -> list[TablePlan]:
    tables = snapshot_plan.select_tables(connection, publication)
    if not tables:
        raise ConfigError(
            f"the restored server has no tables in publication {publication}",
            "correct [source] publication, or the database in [source] url",
        )
    return snapshot_plan.plan(connection, tables, part_bytes=1 << 40)


class _LoggedRows:
    """A table's rows by snapshot and log, in the columns that the restored server has."""

    def __init__(self, reader: LogReader, plan: TablePlan, lsn: Lsn) -> None:
        self._reader = reader
        self._relation = plan.relation
        self._state = table_state.find(reader, plan.relation.schema, plan.relation.name, lsn)

    def __call__(self) -> Iterator[bytes]:
        # PostgreSQL announces new columns with the next change, so the log may know an earlier relation.
        chain = [self._state.relation, self._relation]
        for images in table_state.rows(self._state, self._reader):
            texts = postgres_text.image_texts(images, self._state.relation)
            batch = retyping.project_texts(texts, chain).batch
            yield from copy_text.lines(batch.columns, batch.num_rows)


@dataclass(frozen=True)
class _RestoredRows:
    """A table's rows on the restored server."""

    connection: psycopg.Connection[Any]
    plan: TablePlan

    def __call__(self) -> Iterator[bytes]:
        for part in self.plan.parts:
            yield from self._copy(sql.SQL("COPY ({}) TO STDOUT").format(part.select))

    def _copy(self, statement: sql.Composed) -> Iterator[bytes]:
        pgconn = self.connection.pgconn
        result = pgconn.exec_(statement.as_bytes(self.connection))
        if result.status != ExecStatus.COPY_OUT:
            raise classify(result)
        piece = bytearray()
        while (got := pgconn.get_copy_data(0))[0] > 0:
            piece += got[1]
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        yield bytes(piece)
        while (ended := pgconn.get_result()) is not None:
            if ended.status != ExecStatus.COMMAND_OK:
                raise classify(ended)
