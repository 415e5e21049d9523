"""Proof that the trail is what the log says, row for row.

What the log gives is written into a temporary table beside the trail, and PostgreSQL compares the two. Values that were
not sent are compared with those that earlier rows of the trail have, which were compared before them. Meanwhile the
trail may grow at one end and lose rows at the other: how far it goes is asked in the statement that looks at its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from psycopg import sql

from tailrace import settings
from tailrace.audit.trail import Trail
from tailrace.change import Lsn, Position
from tailrace.errors import ConfigError, GapError
from tailrace.log import decoding, plan
from tailrace.log.decoding import Admission
from tailrace.log.plan import Limits
from tailrace.log.reader import LogReader
from tailrace.log.rendering import printable
from tailrace.sinks import Common
from tailrace.sinks.audit import filling
from tailrace.sinks.audit.pieces import Piece, Stitching, piece, stitched
from tailrace.sinks.audit.register import Register
from tailrace.sinks.audit.rows import ERASED, FIELDS, KEY_BEFORE, UNCHANGED, UNSENT, Manner
from tailrace.sinks.audit.shapes import Shapes
from tailrace.sinks.audit.sink import source_of
from tailrace.sinks.audit.table import ChangesTable
from tailrace.sinks.database.copying import lines
from tailrace.sinks.database.declared import Types
from tailrace.sinks.database.failure import classified
from tailrace.sinks.database.ledger import Ledger
from tailrace.sinks.database.rows import Rows, Table
from tailrace.sinks.database.staging import copy_in, declarations
from tailrace.sinks.shaping import Shaping
from tailrace.store import Store

_AT_ONCE: Final = Limits(64, 32 * 1024 * 1024)
_EXPECTED: Final = sql.Identifier("pg_temp", "expected")
_LACKING: Final = sql.Identifier("pg_temp", "lacking")
_COMPARED: Final = ("operation", "schema", "table", "context", "primary_key", "committed_at", "position", "xid")

# Values may differ that were not sent, where the trail says that it does not know them, or has them from elsewhere than
# its own rows; and those that were erased, where that was written down. Texts are compared: numbers that are equal need
# not be the same.
_COMPARE: Final = """
SELECT coalesce(e.commit_position, c.commit_position), coalesce(e.ordinal, c.ordinal),
       coalesce(e.schema, c.schema), coalesce(e."table", c."table"), coalesce(c.primary_key, e.primary_key),
       CASE WHEN c.id IS NULL THEN '{{missing}}'::text[] WHEN e.id IS NULL THEN '{{added}}'::text[] ELSE d.names END,
       cardinality(unproved.names)
FROM {expected} e
FULL JOIN (SELECT * FROM {changes} WHERE database = %(database)s
           AND commit_position >= %(start)s AND commit_position < %(end)s
           AND ({kept_since} IS NULL OR committed_at >= {kept_since})) c
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
) gone
CROSS JOIN LATERAL (
    SELECT coalesce(e.unsent, '{{}}') AS unsent, coalesce(e.unchanged, '{{}}') AS expected,
           coalesce(c.unchanged, '{{}}') AS unchanged
) unknown
CROSS JOIN LATERAL (
    SELECT ARRAY(
        SELECT u FROM unnest(unknown.unsent) u
        WHERE NOT u = ANY (gone.after) AND (u = ANY (unknown.expected)) <> (u = ANY (unknown.unchanged))
          AND coalesce(c.after ->> u = {unchanged}, false) = (u = ANY (unknown.unchanged))
    ) AS names
) unproved
CROSS JOIN LATERAL (
    SELECT array_remove(ARRAY[{differing},
        CASE WHEN c.id <> e.id THEN 'id' END,
        CASE WHEN NOT unknown.unchanged <@ unknown.unsent
                  OR EXISTS (SELECT FROM unnest(unknown.unsent) u
                             WHERE coalesce(c.after ->> u = {unchanged}, false) <> (u = ANY (unknown.unchanged)))
             THEN 'unchanged' END,
        CASE WHEN c.previous_key IS DISTINCT FROM e.previous_key THEN 'previous_key' END,
        CASE WHEN (c.before - gone.before)::text IS DISTINCT FROM (e.before - gone.before)::text
             THEN 'before' END,
        CASE WHEN (c.after - unproved.names - gone.after)::text
                  IS DISTINCT FROM (e.after - unproved.names - gone.after)::text THEN 'after' END
    ], NULL) AS names
) d
WHERE (e.id IS NULL OR {kept_since} IS NULL OR e.committed_at >= {kept_since})
  AND (c.id IS NULL OR e.id IS NULL OR d.names <> '{{}}' OR unproved.names <> '{{}}')
ORDER BY 1, 2
"""


@dataclass(frozen=True)
class Difference:
    position: Position
    table: str
    key: str | None
    what: tuple[str, ...]
    """`missing`, `added`, or the columns that differ."""

    def __str__(self) -> str:
        where = printable(f"{self.position}  {self.table}" + ("" if self.key is None else f" {self.key}"))
        match self.what:
            case ("missing",):
                return f"{where}: the log has it, the trail does not"
            case ("added",):
                return f"{where}: the trail has it, the log does not"
        return f"{where}: {', '.join(self.what)} differ from the log"


@dataclass
class Tally:
    changes: int = 0
    reached: Lsn = Lsn(0)  # noqa: RUF009 (an immutable value)
    erased: int = 0
    older: int = 0
    """Rows from before what the log still has."""
    strangers: int = 0
    """Rows that Tailrace did not write: from before it."""
    others: int = 0
    """Rows of other databases."""
    gaps: list[tuple[Lsn, Lsn]] = field(default_factory=list)
    """From where to where neither the log nor the trail has any."""
    unproved: int = 0
    """Values that PostgreSQL did not send, and that are not in the changes before them."""
    differences: list[Difference] = field(default_factory=list)


def verify(
    trail: Trail, given: settings.Store, common: Common, inserts: str | None, told: Callable[[Tally], None]
) -> Tally:
    """`told` hears of the progress now and then."""
    with classified():
        return _Proof(trail, given, common, inserts).run(told)


class _Proof:
    def __init__(self, trail: Trail, given: settings.Store, common: Common, inserts: str | None) -> None:
        store = Store.open(given.url, given.options)
        self._trail = trail
        self._connection = trail.connection
        self._reader = LogReader(store)
        self._source = source_of(given)
        self._shaping = Shaping(common, self._source.database)
        self._ledger = Ledger(trail.connection, trail.schema, trail.sink)
        self._register = Register(trail.connection, trail.schema, trail.sink)
        self._shapes = Shapes(trail.connection, trail.schema, f"{trail.sink} (verified)", is_kept=False)
        self._types = Types(trail.connection)
        self._inserts = inserts or ChangesTable(trail.connection, *trail.place).spelling()

    def run(self, told: Callable[[Tally], None]) -> Tally:
        state = self._ledger.state()
        start = self._register.beginning()
        if state.cursor is None or start is None:
            raise ConfigError(f"sink {self._trail.sink} has delivered nothing yet", "`tailrace deliver` does")
        begins_at = max(start, plan.beginning(self._reader))
        tally = Tally(
            older=self._count("database = %s AND commit_position >= %s AND commit_position < %s", start, begins_at),
            strangers=self._count("commit_position IS NULL AND (database <> %s OR position < %s)", begins_at),
            others=self._count("commit_position IS NOT NULL AND database <> %s"),
        )
        for table, fields in ((_EXPECTED, (*FIELDS, UNSENT)), (_LACKING, (*FIELDS, UNSENT, KEY_BEFORE))):
            self._connection.execute(
                sql.SQL("CREATE TEMPORARY TABLE {} ({})").format(table, declarations(self._types, fields))
            )
        # The trail goes on after a gap, as the log does.
        offset = plan.begin(self._reader, begins_at, across_gaps=True)
        while offset.lsn < state.cursor:
            batch = plan.following(self._reader, offset, _AT_ONCE, across_gaps=True)
            if batch.end.lsn <= offset.lsn:
                raise GapError(f"the log ends at {offset.lsn}, the trail at {state.cursor}", "is it the right store?")
            end = min(batch.end.lsn, state.cursor)
            tally.changes += self._write(
                decoding.chunks(
                    self._reader, batch.slices, Admission(max(begins_at, offset.lsn), end=end), as_text=True
                )
            )
            found, unproved = self._compare(max(begins_at, offset.lsn), end)
            tally.differences += found
            tally.unproved += unproved
            tally.reached, offset = end, batch.end
            told(tally)
        tally.differences += self._outside(start, begins_at)
        tally.erased = self._erased()
        tally.gaps = self._register.lost()
        return tally

    def _write(self, found: Iterator[tuple[plan.Slice, decoding.Chunk]]) -> int:
        """What the log gives; how many changes."""
        stitching, count = Stitching(), 0
        manner = Manner(self._source, self._inserts, "now", is_proof=True)
        for some, contexts in stitched((self._shaping.apply(chunk) for _, chunk in found), stitching):
            made = piece(some, contexts, manner, _inline)
            if made is not None:
                self._put(made)
                count += sum(rows.count for rows in made.rows())
        stitching.finish()
        expected = ChangesTable(self._connection, "pg_temp", "expected")
        for late in stitching.late:
            expected.set_context(self._source.database, late)
        return count

    def _put(self, made: Piece) -> None:
        for relation, commit_lsn in made.relations:
            self._shapes.meet(relation, commit_lsn)
        if made.plain is not None:
            copy_in(self._connection, _EXPECTED, [made.plain.lines or b""])
        for oid, lacking in made.lacking:
            copy_in(self._connection, _LACKING, [lacking.lines or b""])
            shape = self._shapes.known()[oid]
            filling.insert(self._connection, self._trail.table, _LACKING, shape, _EXPECTED, [UNSENT.name])
            self._connection.execute(sql.SQL("TRUNCATE {}").format(_LACKING))

    def _compare(self, start: Lsn, end: Lsn) -> tuple[list[Difference], int]:
        """What differs, and how many values could not be compared."""
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
            erasures=self._register.erasures,
            erased=sql.Literal(ERASED),
            unchanged=sql.Literal(UNCHANGED),
            differing=differing,
            kept_since=self._register.kept_since,
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
        return [_difference(*row) for *row, _ in rows if row[-1]], sum(unproved for *_, unproved in rows)

    def _outside(self, start: Lsn, begins_at: Lsn) -> list[Difference]:
        """Rows that say they are from where the trail has nothing, as far as it is by now, or from within it and not
        from Tailrace."""
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

    def _erased(self) -> int:
        query = sql.SQL("SELECT count(*) FROM {} WHERE sink = %s").format(self._register.erasures)
        row = self._connection.execute(query, [self._trail.sink]).fetchone()
        return int(row[0]) if row else 0


def _inline(table: Table) -> Rows:
    return Rows(table.fields, len(table), b"".join(lines(table.arrays, len(table))), table.positions)


def _difference(commit: int, ordinal: int, schema: str, table: str, key: str | None, what: list[str]) -> Difference:
    return Difference(Position(Lsn(commit), ordinal), f"{schema}.{table}", key, tuple(what))
