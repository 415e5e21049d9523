"""A change as text: one JSON object, or one line for people."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

from tailrace.change import Change, Column
from tailrace.types import mapping

_WIDEST = 60


def to_json(change: Change) -> str:
    """One line. Numbers and strings are exactly PostgreSQL's."""
    fields = {
        "position": json.dumps(str(change.position)),
        "commit_lsn": json.dumps(str(change.position.commit_lsn)),
        "ordinal": str(change.position.ordinal),
        "lsn": json.dumps(str(change.lsn)),
        "xid": str(change.xid),
        "committed_at": json.dumps(iso(change.committed_at)),
        "operation": json.dumps(change.operation),
        "schema": _text(change.schema),
        "table": _text(change.table),
        "relation_id": str(change.relation.oid) if change.relation else "null",
        "key": _object(change.key_columns),
        "before": _object(change.old_columns),
        "after": _object(change.new_columns),
        "unchanged": _text(change.unchanged),
        "message_prefix": _text(change.prefix),
        "message": _text(message(change)),
    }
    return "{" + ", ".join(f'"{name}": {value}' for name, value in fields.items()) + "}"


def to_line(change: Change) -> str:
    """For people: what happened where, with long values cut."""
    parts = [str(change.position), iso(change.committed_at), f"{change.operation:<8}"]
    if change.relation is None:
        parts.append(f"{change.prefix!r} {cut(_text(message(change)))}")
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


def message(change: Change) -> str | None:
    """The content of a logical message, as text if it is text, else in hex; the options of a TRUNCATE."""
    if change.content is None:
        return " ".join(change.truncate_options) or None
    return content_text(change.content)


def content_text(content: bytes) -> str:
    """Text if it is text, else hex, with `\\x` before it."""
    with suppress(UnicodeDecodeError):
        text = content.decode()
        if not text.startswith("\\x"):
            return text
    return "\\x" + content.hex()


def iso(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def moment(text: str) -> datetime:
    """An ISO time, UTC unless it says otherwise; ValueError for anything else."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def cut(value: str) -> str:
    """As much of it as fits beside others."""
    return value if len(value) <= _WIDEST else value[: _WIDEST - 1] + "…"


def printable(line: str) -> str:
    """On one line, and nothing in it that a terminal obeys: others chose the names and values."""
    if line.isprintable():
        return line
    return "".join([c if c.isprintable() else c.encode("unicode_escape").decode() for c in line])


def _text(value: str | Sequence[str] | None) -> str:
    return json.dumps(value, ensure_ascii=False)


def _object(columns: Sequence[tuple[Column, bytes | None]] | None) -> str:
    if columns is None:
        return "null"
    return "{" + ", ".join(f"{_text(c.name)}: {mapping(c).json_text(v)}" for c, v in columns) + "}"


def _pairs(columns: Sequence[tuple[Column, bytes | None]] | None) -> str:
    return " ".join(f"{c.name}={cut(mapping(c).json_text(v))}" for c, v in columns or ())
