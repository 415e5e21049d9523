"""One person's values taken out of the trail: what happened stays, and stays provable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from psycopg import sql

from tailrace.audit.trail import Trail
from tailrace.errors import ConfigError
from tailrace.sinks.audit.register import Register
from tailrace.sinks.audit.rows import ERASED
from tailrace.sinks.audit.shapes import Shapes
from tailrace.sinks.database.failure import classified

# What identifies the row stays: it is what the erasure itself is known by. A value that is not known is not to be found
# out any more.
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
    """Overwrite values of a row in every change of it, under whatever key; how many changes there were."""
    life = trail.life(table, key)
    # A row that left the key to another is that person's as well.
    left = [
        later for row in life if row.previous_key in key and row.primary_key not in key for later in trail.onward(row)
    ]
    own = list({row.position: row for row in (*life, *left) if row.operation != "TRUNCATE"}.values())
    name = f"{'.'.join(table)} {' '.join(key)}"
    if not own:
        raise ConfigError(f"the audit trail has nothing about {name}", "is the key right?")
    with classified():
        shape = Shapes(trail.connection, trail.schema, trail.sink).of(*table)
    identity = shape.key if shape is not None else ()
    had = {name for row in own for image in (row.before, row.after) if image for name in image}
    if strangers := [column for column in columns if column not in had]:
        raise ConfigError(f"{name} never had {', '.join(strangers)}", f"it has {', '.join(sorted(had))}")
    if keys := [column for column in columns if column in identity]:
        raise ConfigError(f"{', '.join(keys)} identifies the row, and stays", "erase the others")
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
    with classified(), trail.connection.transaction():
        Register(trail.connection, trail.schema, trail.sink).erase(table, keys, wanted)
        return trail.connection.execute(sql.SQL(_ERASE).format(changes=trail.table, **overwritten), values).rowcount
