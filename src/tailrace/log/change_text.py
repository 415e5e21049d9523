"""One change as text: a JSON object, or a line for people. `json_columns` produces the same JSON a column at a time."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress

from tailrace.change import Change, Column
from tailrace.log.terminal import printable, shorten
from tailrace.log.timestamp import format_timestamp
from tailrace.types import mapping


def to_json(change: Change) -> str:
    """The change as JSON on one line. Numbers and strings are exactly PostgreSQL's."""
    fields = {
        "position": json.dumps(str(change.position)),
        "commit_lsn": json.dumps(str(change.position.commit_lsn)),
        "ordinal": str(change.position.ordinal),
        "lsn": json.dumps(str(change.lsn)),
        "xid": str(change.xid),
        "committed_at": json.dumps(format_timestamp(change.committed_at)),
        "operation": json.dumps(change.operation),
        "schema": _json_text(change.schema),
        "table": _json_text(change.table),
        "relation_id": str(change.relation.oid) if change.relation else "null",
        "key": _json_object(change.key_columns),
        "before": _json_object(change.old_columns),
        "after": _json_object(change.new_columns),
        "unchanged": _json_text(change.unchanged),
        "message_prefix": _json_text(change.prefix),
        "message": _json_text(message_text(change)),
    }
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def to_line(change: Change, *, shows_xid: bool = False) -> str:
    """The change on one line for people, with long values cut."""
    parts = [str(change.position), format_timestamp(change.committed_at), f"{change.operation:<8}"]
    if shows_xid:
        parts.insert(1, f"xid {change.xid}")
    if change.relation is None:
        parts.append(f"{change.prefix!r} {shorten(_json_text(message_text(change)))}")
    else:
        parts.append(change.relation.qualified_name)
    columns = change.new_columns or change.old_columns
    if change.key_columns and change.new_columns and any(pair not in change.new_columns for pair in change.key_columns):
        parts += [_pairs(change.key_columns), "→"]
    if columns is not None:
        parts.append(_pairs(columns))
    parts += [f"{name}=(unchanged)" for name in change.unchanged]
    parts += change.truncate_options
    return printable("  ".join(part for part in parts if part))


def message_text(change: Change) -> str | None:
    """The content of a logical message, as `content_text` gives it; for a TRUNCATE, its options."""
    if change.content is None:
        return " ".join(change.truncate_options) or None
    return content_text(change.content)


def content_text(content: bytes) -> str:
    """UTF-8 as text; other content, and text that begins with `\\x`, as `\\x` and hexadecimal."""
    with suppress(UnicodeDecodeError):
        text = content.decode()
        if not text.startswith("\\x"):
            return text
    return "\\x" + content.hex()


def _json_text(value: str | Sequence[str] | None) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json_object(columns: Sequence[tuple[Column, bytes | None]] | None) -> str:
    if columns is None:
        return "null"
    return "{" + ", ".join(f"{_json_text(c.name)}: {mapping(c).json_text(v)}" for c, v in columns) + "}"


def _pairs(columns: Sequence[tuple[Column, bytes | None]] | None) -> str:
    return " ".join(f"{c.name}={shorten(mapping(c).json_text(v))}" for c, v in columns or ())
