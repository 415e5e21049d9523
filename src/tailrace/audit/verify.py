"""Verifies that the trail agrees with the log, row by row.

The rows that the log implies are written to a temporary table, and PostgreSQL compares it with the trail. Unsent values
are compared with the values of earlier rows of the trail, which have been compared before. Meanwhile rows may be added
to the trail and expired rows deleted: so each statement reads the trail's current bounds together with its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from psycopg import sql

from tailrace import settings
from tailrace.audit.trail import Trail
from tailrace.change import Lsn, Position
from tailrace.delivery.sink_settings import SinkSettings
from tailrace.delivery.transforms import Shaping
from tailrace.errors import ConfigError, GapError
from tailrace.log import decoding, planner
from tailrace.log.decoding import ChangeFilter
from tailrace.log.planner import BatchLimits
from tailrace.log.reader import LogReader
from tailrace.log.terminal import printable
from tailrace.postgres import copy_text
from tailrace.sinks.audit import unsent_value
from tailrace.sinks.audit.change_row import ERASED, FIELDS, KEY_BEFORE, UNCHANGED, UNSENT, RowFormat
from tailrace.sinks.audit.changes_table import ChangesTable
from tailrace.sinks.audit.naming_history import NamingHistory
from tailrace.sinks.audit.sink import source_of
from tailrace.sinks.audit.staged_changes import ContextStitcher, StagedChanges, stage, with_contexts
from tailrace.sinks.audit.trail_record import TrailRecord
from tailrace.sinks.database.postgresql.destination_error import classify_errors
from tailrace.sinks.database.postgresql.destination_type import DestinationTypes
from tailrace.sinks.database.postgresql.ledger import Ledger
from tailrace.sinks.database.postgresql.staging import copy_in, declarations
from tailrace.sinks.database.staged_rows import RowBatch, StagedRows
from tailrace.store import Store

_BATCH: Final = BatchLimits(64, 32 * 1024 * 1024)
_EXPECTED: Final = sql.Identifier("pg_temp", "expected")
_INCOMPLETE: Final = sql.Identifier("pg_temp", "incomplete")
_COMPARED: Final = ("operation", "schema", "table", "context", "primary_key", "committed_at", "position", "xid")

# Two kinds of values may differ: unsent values that the trail marks as unknown or has from elsewhere than its own rows,
# and erased values whose erasure is recorded. Text is compared, because equal numbers may have different digits.
_COMPARE: Final = """
SELECT coalesce(e.commit_position, c.commit_position), coalesce(e.ordinal, c.ordinal),
       coalesce(e.schema, c.schema), coalesce(e."table", c."table"), coalesce(c.primary_key, e.primary_key),
       CASE WHEN c.id IS NULL THEN '{{missing}}'::text[] WHEN e.id IS NULL THEN '{{added}}'::text[] ELSE d.names END,
       cardinality(unverified.names)
FROM {expected} e
FULL JOIN (SELECT * FROM {changes} WHERE database = %(database)s
           AND commit_position >= %(start)s AND commit_position < %(end)s
           AND ({retained_since} IS NULL OR committed_at >= {retained_since})) c
    ON c.commit_position = e.commit_position AND c.ordinal = e.ordinal
LEFT JOIN LATERAL (
    SELECT coalesce(array_agg(x.name), '{{}}') AS names FROM {erasures} r
    CROSS JOIN LATERAL unnest(r.columns) x (name)
    WHERE r.sink = %(sink)s AND r.schema = c.schema AND r."table" = c."table"
      AND r.primary_key IN (c.primary_key, c.previous_key)
) erased ON true
CROSS JOIN LATERAL (
    SELECT ARRAY(SELECT n FROM unnest(erased.names) n WHERE c.before ->> n = {erased}) AS before,
           ARRAY(SELECT n FROM unnest(erased.names) n WHERE c.after ->> n = {erased}) AS after
) overwritten
CROSS JOIN LATERAL (
    SELECT coalesce(e.unsent, '{{}}') AS unsent, coalesce(e.unchanged, '{{}}') AS expected,
           coalesce(c.unchanged, '{{}}') AS unchanged
) unknown
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT u FROM unnest(unknown.unsent) u
        WHERE NOT u = ANY (overwritten.after) AND (u = ANY (unknown.expected)) <> (u = ANY (unknown.unchanged))
          AND coalesce(c.after ->> u = {unchanged}, false) = (u = ANY (unknown.unchanged))
    ) AS names
) unverified
CROSS JOIN LATERAL (
    SELECT array_remove(ARRAY[{differing},
        CASE WHEN c.id <> e.id THEN 'id' END,
        CASE WHEN NOT unknown.unchanged <@ unknown.unsent
                  OR EXISTS (SELECT FROM unnest(unknown.unsent) u
                             WHERE coalesce(c.after ->> u = {unchanged}, false) <> (u = ANY (unknown.unchanged)))
             THEN 'unchanged' END,
        CASE WHEN c.previous_key IS DISTINCT FROM e.previous_key THEN 'previous_key' END,
        CASE WHEN (c.before - overwritten.before)::text IS DISTINCT FROM (e.before - overwritten.before)::text
             THEN 'before' END,
        CASE WHEN (c.after - unverified.names - overwritten.after)::text
                  IS DISTINCT FROM (e.after - unverified.names - overwritten.after)::text THEN 'after' END
    ], NULL) AS names
) d
WHERE (e.id IS NULL OR {retained_since} IS NULL OR e.committed_at >= {retained_since})
  AND (c.id IS NULL OR e.id IS NULL OR d.names <> '{{}}' OR unverified.names <> '{{}}')
ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Difference:
    """A row of the trail that does not agree with the log."""

    position: Position
    table: str
    key: str | None
    what: tuple[str, ...]
    """`missing`, `added`, or the columns that differ."""

    def __str__(self) -> str:
        where = printable(f"{self.position}  {self.table}" + ("" if self.key is None else f" {self.key}"))
        match self.what:
            case ("missing",):
                return f"{where}: in the log, but not in the trail"
            case ("added",):
                return f"{where}: in the trail, but not in the log"
        return f"{where}: {', '.join(self.what)} differ from the log"


@dataclass
class VerificationReport:
    """What a verification has found so far."""

    changes: int = 0
    reached: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    erased: int = 0
    older: int = 0
    """Rows from before the beginning of the log."""
    foreign: int = 0
    """Earlier rows that Tailrace did not write."""
    others: int = 0
    """Rows of other databases."""
    gaps: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    """The ranges of LSNs whose changes neither the log nor the trail has."""
    unverified: int = 0
    """Values that PostgreSQL did not send and that no earlier change contains."""
    differences: list[Difference] = field(default_factory=list)


def verify(
    trail: Trail,
    store_settings: settings.StoreSettings,
    common: SinkSettings,
    inserts: str | None,
    report_progress: Callable[[VerificationReport], None],
) -> VerificationReport:
    """Compare a trail with its log.

    Args:
        trail: The trail.
        store_settings: The store of the log.
        common: The sink's settings.
        inserts: The operation of inserts; None to find it in the trail.
        report_progress: Called with the report after each batch.
    """
    with classify_errors():
        return _Verification(trail, store_settings, common, inserts).run(report_progress)


class _Verification:
    def __init__(
        self, trail: Trail, store_settings: settings.StoreSettings, common: SinkSettings, inserts: str | None
    ) -> None:
        store = Store.open(store_settings.url, store_settings.options)
        self._trail = trail
        self._connection = trail.connection
        self._reader = LogReader(store)
        self._source = source_of(store_settings)
        self._shaping = Shaping(common, self._source.database)
        self._ledger = Ledger(trail.connection, trail.schema, trail.sink)
        self._record = TrailRecord(trail.connection, trail.schema, trail.sink)
        self._naming = NamingHistory(trail.connection, trail.schema, f"{trail.sink} (verified)", is_stored=False)
        self._types = DestinationTypes(trail.connection)
        self._inserts = inserts or ChangesTable(trail.connection, *trail.table_name).insert_operation()

    def run(self, report_progress: Callable[[VerificationReport], None]) -> VerificationReport:
        state = self._ledger.state()
        start = self._record.beginning()
        if state.cursor is None or start is None:
            raise ConfigError(f"sink {self._trail.sink} has not delivered anything yet", "run `tailrace deliver`")
        begins_at = max(start, planner.earliest_lsn(self._reader))
        report = VerificationReport(
            older=self._count("database = %s AND commit_position >= %s AND commit_position < %s", start, begins_at),
            foreign=self._count("commit_position IS NULL AND (database <> %s OR position < %s)", begins_at),
            others=self._count("commit_position IS NOT NULL AND database <> %s"),
        )
        for table, fields in ((_EXPECTED, (*FIELDS, UNSENT)), (_INCOMPLETE, (*FIELDS, UNSENT, KEY_BEFORE))):
            self._connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(table, declarations(self._types, fields))
            )
        # Like the log, the trail continues after a gap.
        offset = planner.start_offset(self._reader, begins_at, across_gaps=True)
        while offset.lsn < state.cursor:
            batch = planner.next_batch(self._reader, offset, _BATCH, across_gaps=True)
            if batch.end.lsn <= offset.lsn:
                raise GapError(
                    f"the log ends at {offset.lsn}, but the trail at {state.cursor}",
                    "check that this is the right store",
                )
            end = min(batch.end.lsn, state.cursor)
            report.changes += self._write(
                decoding.chunks(
                    self._reader, batch.slices, ChangeFilter(max(begins_at, offset.lsn), end=end), as_text=True
                )
            )
            found, unverified = self._compare(max(begins_at, offset.lsn), end)
            report.differences += found
            report.unverified += unverified
            report.reached, offset = end, batch.end
            report_progress(report)
        report.differences += self._differences_outside(start, begins_at)
        report.erased = self._count_erased()
        report.gaps = self._record.lost_ranges()
        return report

    def _write(self, found: Iterator[tuple[planner.Slice, decoding.Chunk]]) -> int:
        """Write the rows that the log implies; returns the number of changes."""
        stitcher, count = ContextStitcher(), 0
        format = RowFormat(self._source, self._inserts, "now", has_unsent=True)
        for changes, contexts in with_contexts((self._shaping.apply(chunk) for _, chunk in found), stitcher):
            staged = stage(changes, contexts, format, _to_staged_rows)
            if staged is not None:
                self._put(staged)
                count += sum(rows.count for rows in staged.rows())
        stitcher.finish()
        expected = ChangesTable(self._connection, "pg_temp", "expected")
        for late in stitcher.late:
            expected.set_context(self._source.database, late)
        return count

    def _put(self, changes: StagedChanges) -> None:
        for relation, commit_lsn in changes.relations:
            self._naming.update(relation, commit_lsn)
        if changes.complete is not None:
            copy_in(self._connection, _EXPECTED, [changes.complete.lines or b""])
        for oid, rows in changes.incomplete:
            copy_in(self._connection, _INCOMPLETE, [rows.lines or b""])
            naming = self._naming.tables()[oid]
            unsent_value.insert(self._connection, self._trail.table, _INCOMPLETE, naming, _EXPECTED, [UNSENT.name])
            self._connection.execute(sql.SQL("TRUNCATE {}").format(_INCOMPLETE))

    def _compare(self, start: Lsn, end: Lsn) -> tuple[list[Difference], int]:
        """The differences, and the number of values that could not be compared."""
        differing = sql.SQL(", ").join(
            [
                sql.SQL("CASE WHEN c.{n} IS DISTINCT FROM e.{n} THEN {name} END").format(
                    n=sql.Identifier(name), name=sql.Literal(name)
                )
                for name in _COMPARED
            ]
        )
        query = sql.SQL(_COMPARE).format(
            expected=_EXPECTED,
            changes=self._trail.table,
            erasures=self._record.erasures,
            erased=sql.Literal(ERASED),
            unchanged=sql.Literal(UNCHANGED),
            differing=differing,
            retained_since=self._record.retained_since,
        )
        values: dict[str, Any] = {
            "database": self._source.database,
            "sink": self._trail.sink,
            "start": start,
            "end": end,
        }
        self._connection.execute(sql.SQL("ANALYZE {}").format(_EXPECTED))
        rows = self._connection.execute(query, values).fetchall()
        self._connection.execute(sql.SQL("TRUNCATE {}").format(_EXPECTED))
        return [_difference(*row) for *row, _ in rows if row[-1]], sum(unverified for *_, unverified in rows)

    def _differences_outside(self, start: Lsn, begins_at: Lsn) -> list[Difference]:
        """Rows outside the trail's current bounds, and rows within them that Tailrace did not write."""
        rows = self._connection.execute(
            sql.SQL(
                'SELECT coalesce(commit_position, position), coalesce(ordinal, 0), schema, "table", primary_key,'
                " ARRAY['added'] FROM {} WHERE database = %s AND (commit_position < %s OR commit_position >= {}"
                " OR commit_position IS NULL AND position >= %s) ORDER BY 1, 2"
            ).format(self._trail.table, self._ledger.cursor),
            [self._source.database, start, begins_at],
        ).fetchall()
        return [_difference(*row) for row in rows]

    def _count(self, condition: str, *more: object) -> int:
        query = sql.SQL(f"SELECT count(*) FROM {{}} WHERE {condition}").format(self._trail.table)  # noqa: S608
        row = self._connection.execute(query, [self._source.database, *more]).fetchone()
        return int(row[0]) if row else 0

    def _count_erased(self) -> int:
        query = sql.SQL("SELECT count(*) FROM {} WHERE sink = %s").format(self._record.erasures)
        row = self._connection.execute(query, [self._trail.sink]).fetchone()
        return int(row[0]) if row else 0


def _to_staged_rows(batch: RowBatch) -> StagedRows:
    return StagedRows(batch.fields, len(batch), b"".join(copy_text.lines(batch.arrays, len(batch))), batch.positions)


def _difference(commit: int, ordinal: int, schema: str, table: str, key: str | None, what: list[str]) -> Difference:
    return Difference(Position(Lsn(commit), ordinal), f"{schema}.{table}", key, tuple(what))
