"""Values that nobody had sent since the trail began, from the log: a snapshot from before has them.

It reads a whole table's state, so it is done between two steps, now and then, for all that is missing of a table at
once. A value that was not sent is the same as long as it is not sent: so what the row had when a value of it was first
missing is right for every change that lacks it.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from tailrace.change import Lsn
from tailrace.errors import TailraceError
from tailrace.log import json as log_json
from tailrace.log import state
from tailrace.log.decoding import TableChanges
from tailrace.log.reader import LogReader
from tailrace.sinks.audit import filling, rows
from tailrace.sinks.audit.exact import jsonb_texts
from tailrace.sinks.audit.shapes import Shapes
from tailrace.sinks.audit.table import ChangesTable
from tailrace.sinks.shaping import Shaping
from tailrace.types import Form, mapping

_log = logging.getLogger("tailrace.deliver")

_EVERY_S: Final = 60.0
"""What is missing is marked, and can wait; a table's state is worth reading for many rows at once."""
_AGAIN_S: Final = 3600.0
"""A table whose state the log cannot tell: somebody may take a snapshot, though that only helps what comes later."""
_AT_ONCE: Final = 20_000

_TABLES: Final = """
SELECT DISTINCT schema, "table" FROM {changes}
WHERE unchanged IS NOT NULL AND commit_position IS NOT NULL AND database = %(database)s
"""
# A row that came to its key from another was, when values were first missing, not under that key.
_IS_FIRST: Final = """
(c.previous_key IS NOT NULL OR NOT EXISTS (
    SELECT FROM {changes} m WHERE m.schema = c.schema AND m."table" = c."table" AND m.primary_key = c.primary_key
    AND m.previous_key IS NOT NULL AND (m.commit_position, m.ordinal) < (c.commit_position, c.ordinal)))
"""
_IS_NAMED: Final = "c.commit_position >= (%(since)s::jsonb ->> u)::bigint"
"""When the change was made, the column had the name that it has now."""
_LACKING: Final = """
SELECT coalesce(c.previous_key, c.primary_key), array_agg(DISTINCT u), min(c.commit_position)
FROM {changes} c, unnest(c.unchanged) u
WHERE c.unchanged IS NOT NULL AND c.database = %(database)s AND c.schema = %(schema)s AND c."table" = %(table)s
  AND c.primary_key IS NOT NULL AND {is_named}
  AND {is_first}
GROUP BY 1 ORDER BY 3 LIMIT %(limit)s
"""
_FILL: Final = """
UPDATE {changes} c SET
    after = c.after || (SELECT jsonb_object_agg(u, k.found -> u) FROM unnest(c.unchanged) u
                        WHERE k.found ? u AND {is_named}),
    unchanged = nullif(ARRAY(SELECT u FROM unnest(c.unchanged) u WHERE NOT (k.found ? u AND {is_named})), '{{}}')
FROM (SELECT unnest(%(keys)s::text[]) AS key, unnest(%(found)s::text[])::jsonb AS found) k
WHERE c.unchanged IS NOT NULL AND c.database = %(database)s AND c.schema = %(schema)s AND c."table" = %(table)s
  AND coalesce(c.previous_key, c.primary_key) = k.key
  AND EXISTS (SELECT FROM unnest(c.unchanged) u WHERE k.found ? u AND {is_named}) AND {is_first}
"""


@dataclass
class Recovery:
    table: ChangesTable
    database: str
    reader: LogReader
    shaping: Shaping
    shapes: Shapes
    _due: float = 0.0
    _hopeless: dict[tuple[str, str], float] = field(default_factory=dict)

    def turn(self) -> None:
        now = time.monotonic()
        if now < self._due:
            return
        self._due = now + _EVERY_S
        for schema, name in self._query(_TABLES, {}):
            if self._hopeless.get((schema, name), now) > now:
                continue
            try:
                found = self._recover(schema, name)
            except TailraceError as error:
                found = 0
                _log.info("%s.%s: values that were not sent stay unknown: %s", schema, name, error)
            if not found:
                self._hopeless[schema, name] = now + _AGAIN_S

    def _recover(self, schema: str, name: str) -> int:
        shape = self.shapes.of(schema, name)
        if shape is None:
            return 0
        since = json.dumps(shape.columns_since)
        given: dict[str, Any] = {"schema": schema, "table": name, "since": since, "limit": _AT_ONCE}
        found = self._query(_LACKING, given)
        if not found:
            return 0
        lacking = {key: set(names) for key, names, _ in found}
        then = state.find(self.reader, schema, name, as_of=Lsn(found[0][2]))
        numbers = {column.name: column.number for column in then.relation.columns}
        if any(numbers.get(column) != shape.columns[column].number for names in lacking.values() for column in names):
            return 0  # a column had another name then
        done = 0
        for keys, values in _found(then, self.reader, self.shaping, lacking):
            done += self._execute(_FILL, {**given, "keys": keys, "found": values})
        if done:
            done += filling.refill(self.table.connection, self.table.identifier, shape)
            _log.info("%s.%s: %s changes have the values now that were not sent with them", schema, name, f"{done:,}")
        return done

    def _query(self, text: str, given: Mapping[str, Any]) -> list[tuple[Any, ...]]:
        return self._cursor(text, given).fetchall()

    def _execute(self, text: str, given: Mapping[str, Any]) -> int:
        return self._cursor(text, given).rowcount

    def _cursor(self, text: str, given: Mapping[str, Any]) -> psycopg.Cursor[Any]:
        changes = self.table.identifier
        statement = sql.SQL(text).format(
            changes=changes, is_first=sql.SQL(_IS_FIRST).format(changes=changes), is_named=sql.SQL(_IS_NAMED)
        )
        return self.table.connection.execute(statement, {"database": self.database, **given})


def _found(
    then: state.TableState, reader: LogReader, shaping: Shaping, lacking: Mapping[str, set[str]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Keys of rows that lack something, each with the values of the columns that it lacks, as JSON."""
    wanted = pa.array(list(lacking), pa.string())
    names = sorted(set().union(*lacking.values()))
    for images in state.rows(then, reader):
        shaped = next(iter(shaping.apply([state.as_changes(then.relation, images)])), None)
        if not isinstance(shaped, TableChanges):
            continue
        keys = rows.primary_keys(shaped)
        some = pc.indices_nonzero(pc.is_in(keys, wanted))
        if not len(some):
            continue
        columns = {
            column.name: _json(shaped.new.batch.column(place).take(some), column)
            for place, column in enumerate(shaped.relation.columns)
            if column.name in names
        }
        own = keys.take(some).to_pylist()
        texts = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        yield (
            own,
            [_object({n: v for n, v in row.items() if n in lacking[key]}) for key, row in zip(own, texts, strict=True)],
        )


def _json(texts: pa.StringArray, column: Any) -> list[str]:
    found = jsonb_texts(texts) if mapping(column).form is Form.JSON else texts
    return log_json.values(found, column).to_pylist()  # type: ignore[no-any-return]


def _object(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{log_json.quoted_text(name)}: {value}" for name, value in values.items()) + "}"
