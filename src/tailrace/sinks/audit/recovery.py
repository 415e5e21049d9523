"""Recovers values that have not been sent since the trail began, from an earlier snapshot in the log.

Recovery reads the whole state of a table, so it runs between steps, at intervals, for all missing values of a table. A
value stays the same as long as it is not sent: so the value that a row had when it was first missing holds for every
change that lacks it.
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
from tailrace.delivery.transforms import Shaping
from tailrace.errors import TailraceError
from tailrace.log import json_columns as log_json
from tailrace.log.decoding import TableChanges
from tailrace.log.jsonb import jsonb_texts
from tailrace.log.reader import LogReader
from tailrace.sinks.audit import change_row, unsent_value
from tailrace.sinks.audit.changes_table import ChangesTable
from tailrace.sinks.audit.naming_history import NamingHistory
from tailrace.state import table_state
from tailrace.types import Form, mapping

_log = logging.getLogger("tailrace.deliver")

_INTERVAL_S: Final = 60.0
"""Missing values are marked and can wait, so that a table's state is read for many rows at once."""
_RETRY_S: Final = 3600.0
"""For a table whose state the log does not have. Somebody may take a snapshot, though it helps only later changes."""
_MAX_ROWS: Final = 20_000

_TABLES: Final = """
SELECT DISTINCT schema, "table" FROM {changes}
WHERE unchanged IS NOT NULL AND commit_position IS NOT NULL AND database = %(database)s
"""
# A row whose key changed did not have its current key when values were first missing.
_IS_FIRST: Final = """
(c.previous_key IS NOT NULL OR NOT EXISTS (
    SELECT FROM {changes} m WHERE m.schema = c.schema AND m."table" = c."table" AND m.primary_key = c.primary_key
    AND m.previous_key IS NOT NULL AND (m.commit_position, m.ordinal) < (c.commit_position, c.ordinal)))
"""
_IS_NAMED: Final = "c.commit_position >= (%(since)s::jsonb ->> u)::bigint"
"""The column had its current name when the change was made."""
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
class ValueRecovery:
    """Recovers missing values of one trail."""

    table: ChangesTable
    database: str
    reader: LogReader
    shaping: Shaping
    naming: NamingHistory
    _due_at: float = 0.0
    _retry_at: dict[tuple[str, str], float] = field(default_factory=dict)

    def run_if_due(self) -> None:
        """Recover values if the interval has passed."""
        now = time.monotonic()
        if now < self._due_at:
            return
        self._due_at = now + _INTERVAL_S
        for schema, name in self._query(_TABLES, {}):
            if self._retry_at.get((schema, name), now) > now:
                continue
            try:
                found = self._recover(schema, name)
            except TailraceError as error:
                found = 0
                _log.info("%s.%s: unsent values remain unknown: %s", schema, name, error)
            if not found:
                self._retry_at[schema, name] = now + _RETRY_S

    def _recover(self, schema: str, name: str) -> int:
        naming = self.naming.of(schema, name)
        if naming is None:
            return 0
        since = json.dumps(naming.columns_since)
        given: dict[str, Any] = {"schema": schema, "table": name, "since": since, "limit": _MAX_ROWS}
        found = self._query(_LACKING, given)
        if not found:
            return 0
        lacking = {key: set(names) for key, names, _ in found}
        state = table_state.find(self.reader, schema, name, as_of=Lsn(found[0][2]))
        numbers = {column.name: column.number for column in state.relation.columns}
        if any(numbers.get(column) != naming.columns[column].number for names in lacking.values() for column in names):
            return 0  # a column had another name at that time
        done = 0
        for keys, values in _values_of(state, self.reader, self.shaping, lacking):
            done += self._execute(_FILL, {**given, "keys": keys, "found": values})
        if done:
            done += unsent_value.refill(self.table.connection, self.table.identifier, naming)
            _log.info("%s.%s: recovered unsent values of %s changes", schema, name, f"{done:,}")
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


def _values_of(
    state: table_state.TableState, reader: LogReader, shaping: Shaping, lacking: Mapping[str, set[str]]
) -> Iterator[tuple[list[str], list[str]]]:
    """Keys of incomplete rows, each with the values of the columns that it lacks, as JSON."""
    wanted = pa.array(list(lacking), pa.string())
    names = sorted(set().union(*lacking.values()))
    for images in table_state.rows(state, reader):
        shaped = next(iter(shaping.apply([table_state.as_changes(state.relation, images)])), None)
        if not isinstance(shaped, TableChanges):
            continue
        keys = change_row.primary_keys(shaped)
        matching = pc.indices_nonzero(pc.is_in(keys, wanted))
        if not len(matching):
            continue
        columns = {
            column.name: _json(shaped.new.batch.column(place).take(matching), column)
            for place, column in enumerate(shaped.relation.columns)
            if column.name in names
        }
        own = keys.take(matching).to_pylist()
        texts = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        yield (
            own,
            [_object({n: v for n, v in row.items() if n in lacking[key]}) for key, row in zip(own, texts, strict=True)],
        )


def _json(texts: pa.StringArray, column: Any) -> list[str]:
    found = jsonb_texts(texts) if mapping(column).form is Form.JSON else texts
    return log_json.json_values(found, column).to_pylist()  # type: ignore[no-any-return]


def _object(values: Mapping[str, str]) -> str:
    return "{" + ", ".join(f"{log_json.quote_text(name)}: {value}" for name, value in values.items()) + "}"
