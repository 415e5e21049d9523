"""Logical messages about DDL, which an optional event trigger on the source emits into the log.

The trigger's SQL is in `TRIGGER`; `tailrace check` offers it. A message is part of its transaction, so its position is
that of the statement. Its content is JSON: `event`, `tag`, and for each object `type`, `identity` and `oid`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from tailrace.log.snapshot import MARKER_PREFIX

PREFIX: Final = "tailrace.ddl"
OWN_PREFIXES: Final = frozenset({MARKER_PREFIX, PREFIX})
"""Prefixes of the logical messages that Tailrace itself writes. Sinks do not deliver them."""

TRIGGER_NAME: Final = "tailrace_ddl"
TRIGGER: Final = f"""\
CREATE SCHEMA IF NOT EXISTS tailrace;
CREATE OR REPLACE FUNCTION tailrace.log_ddl() RETURNS event_trigger
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
DECLARE found json;
BEGIN
    IF TG_EVENT = 'sql_drop' THEN
        SELECT json_agg(json_build_object('type', object_type, 'identity', object_identity, 'oid', objid::int8))
        INTO found FROM pg_event_trigger_dropped_objects()
        WHERE NOT is_temporary AND object_type IN ('table', 'table column', 'schema');
    ELSE
        SELECT json_agg(json_build_object('type', object_type, 'identity', object_identity, 'oid', objid::int8))
        INTO found FROM pg_event_trigger_ddl_commands()
        WHERE schema_name IS DISTINCT FROM 'pg_temp' AND object_type IN ('table', 'table column', 'index', 'type');
    END IF;
    IF found IS NOT NULL THEN
        PERFORM pg_logical_emit_message(true, '{PREFIX}',
            json_build_object('event', TG_EVENT, 'tag', TG_TAG, 'objects', found)::text);
    END IF;
END $$;
CREATE EVENT TRIGGER {TRIGGER_NAME} ON ddl_command_end EXECUTE FUNCTION tailrace.log_ddl();
CREATE EVENT TRIGGER {TRIGGER_NAME}_drop ON sql_drop EXECUTE FUNCTION tailrace.log_ddl();"""  # noqa: S608 (literals of ours)


@dataclass(frozen=True, slots=True)
class DdlObject:
    type: str
    identity: str
    """The name as PostgreSQL prints it: `public."Orders"`."""
    oid: int


@dataclass(frozen=True, slots=True)
class DdlMessage:
    is_drop: bool
    tag: str
    objects: tuple[DdlObject, ...]

    def __str__(self) -> str:
        shown = [each.identity for each in self.objects if each.type != "index"] or [
            each.identity for each in self.objects
        ]
        more = f" and {len(shown) - 3} more" if len(shown) > 3 else ""
        return f"{self.tag} of {', '.join(shown[:3])}{more}"


def parse(content: bytes) -> DdlMessage | None:
    """A message's content; None if the trigger did not write it, because anyone may emit messages."""
    try:
        raw = json.loads(content)
        objects = tuple([DdlObject(str(o["type"]), str(o["identity"]), int(o["oid"])) for o in raw["objects"]])
        return DdlMessage(raw["event"] == "sql_drop", str(raw["tag"]), objects)
    except (ValueError, KeyError, TypeError):
        return None
