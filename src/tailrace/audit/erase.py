"""Erases a person's values from the trail: the changes remain, and can still be verified."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from tailrace.audit.trail import Trail
from tailrace.errors import ConfigError
from tailrace.sinks.audit.change_row import ERASED
from tailrace.sinks.audit.naming_history import NamingHistory
from tailrace.sinks.audit.trail_record import TrailRecord
from tailrace.sinks.database.postgresql.destination_error import classify_errors

# The row's key remains, because the erasure is recorded under it. An unknown value must not be recovered later, so it
# is no longer listed as unchanged.
_ERASE: Final = """
UPDATE {changes} c SET before = {before}, after = {after},
    unchanged = nullif(ARRAY(SELECT u FROM unnest(c.unchanged) u WHERE NOT u = ANY (%(columns)s)), '{{}}')
FROM (SELECT unnest(%(databases)s::text[]) AS database, unnest(%(commits)s::bigint[]) AS commit_position,
             unnest(%(ordinals)s::bigint[]) AS ordinal) p
WHERE c.database = p.database AND c.commit_position = p.commit_position AND c.ordinal = p.ordinal
"""
_OVERWRITTEN: Final = """
(SELECT jsonb_object_agg(e.key, CASE WHEN e.key = ANY (%(columns)s) THEN {erased} ELSE e.value END)
 FROM jsonb_each(c.{image}) e)
"""


def erase(trail: Trail, table: tuple[str, str], key: Sequence[str], columns: Sequence[str]) -> int:
    """Overwrite values of a row in every change of it, under any of its keys; returns the number of changes.

    Args:
        trail: The trail.
        table: Schema and name of the table.
        key: The key, in the forms that `trail.key_texts` returns.
        columns: The columns to erase; all but the key if empty.
    """
    history = trail.history(table, key)
    # Rows that had the key and changed it are that person's, too.
    key_changes = [row for row in history if row.previous_key in key and row.primary_key not in key]
    later = [change for row in key_changes for change in trail.after_key_change(row)]
    own = list({row.position: row for row in (*history, *later) if row.operation != "TRUNCATE"}.values())
    name = f"{'.'.join(table)} {' '.join(key)}"
    if not own:
        raise ConfigError(f"the audit trail has no changes of {name}", "check the key")
    with classify_errors():
        naming = NamingHistory(trail.connection, trail.schema, trail.sink).of(*table)
    identity = naming.key if naming is not None else ()
    had = {name for row in own for image in (row.before, row.after) if image for name in image}
    if unknown := [column for column in columns if column not in had]:
        raise ConfigError(f"{name} never had {', '.join(unknown)}", f"it has {', '.join(sorted(had))}")
    if keys := [column for column in columns if column in identity]:
        raise ConfigError(f"{', '.join(keys)} is part of the key and cannot be erased", "erase other columns")
    wanted = list(columns) or sorted(had.difference(identity))
    keys = sorted({k for row in own for k in (row.primary_key, row.previous_key) if k is not None})
    values: dict[str, Any] = {
        "columns": wanted,
        "databases": [row.database for row in own],
        "commits": [row.commit_position for row in own],
        "ordinals": [row.ordinal for row in own],
    }
    overwritten = {
        image: sql.SQL(_OVERWRITTEN).format(
            erased=sql.SQL("{}::jsonb").format(sql.Literal(f'"{ERASED}"')), image=sql.Identifier(image)
        )
        for image in ("before", "after")
    }
    with classify_errors(), trail.connection.transaction():
        TrailRecord(trail.connection, trail.schema, trail.sink).add_erasure(table, keys, wanted)
        return trail.connection.execute(sql.SQL(_ERASE).format(changes=trail.table, **overwritten), values).rowcount
