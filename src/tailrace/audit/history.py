"""A row's life as people read it: who, when, which columns, from what to what. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tailrace.audit.exact_json import dumps
from tailrace.audit.trail import Row
from tailrace.log.rendering import cut, iso, printable
from tailrace.sinks.audit.rows import UNCHANGED


@dataclass(frozen=True)
class Entry:
    """One change of a row, beside what the row was before."""

    change: Row
    before: Mapping[str, Any]
    """As far as it is known."""
    after: Mapping[str, Any] | None
    """With what was not sent taken from before; None: the row is gone."""

    @property
    def columns(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, from, to; of those that changed. What is not known is `...`."""
        names = [*(self.after or {}), *(name for name in self.before if name not in (self.after or {}))]
        for name in names:
            was = self.before.get(name, ...)
            now = ... if self.after is None else self.after.get(name, ...)
            if now == UNCHANGED and name in (self.change.unchanged or ()):
                continue
            if was != now or type(was) is not type(now):
                yield name, was, now


def entries(rows: Sequence[Row]) -> Iterator[Entry]:
    """In the log's order, of one row."""
    known: Mapping[str, Any] = {}
    for row in rows:
        before: Mapping[str, Any] = {**known, **(row.before or {})} if row.operation in ("UPDATE", "DELETE") else {}
        if row.operation == "TRUNCATE":
            before = known
        yield Entry(row, before, row.after)
        known = {**known, **row.after} if row.after is not None and row.operation == "UPDATE" else row.after or {}


def as_of(rows: Sequence[Row], moment: datetime) -> Entry | None:
    """The change that made the row what it was then; None where it was not heard of yet."""
    found = [entry for entry in entries(rows) if entry.change.committed_at <= moment]
    return found[-1] if found else None


def line(entry: Entry) -> str:
    change = entry.change
    parts = [iso(change.committed_at), f"{change.operation:<8}", str(change.position), f"xid {change.xid}"]
    if change.context is not None:
        parts.append(said(change.context))
    return printable("  ".join(parts))


def said(context: Any) -> str:
    if not isinstance(context, dict):
        return cut(shown(context))
    return " ".join(
        f"{name}={cut(value if isinstance(value, str) else shown(value))}" for name, value in context.items()
    )


def diff(entry: Entry) -> Iterator[str]:
    found = list(entry.columns)
    width = max((len(name) for name, _, _ in found), default=0)
    for name, was, now in found:
        if entry.change.operation in ("INSERT", "CREATE"):
            text = cut(shown(now))
        elif entry.after is None:
            text = f"{cut(shown(was))} →"
        else:
            text = f"{cut(shown(was))} → {cut(shown(now))}"
        yield printable(f"    {name:<{width}}  {text}")


def to_json(entry: Entry) -> str:
    change = entry.change
    return dumps(
        {
            "position": str(change.position),
            "xid": change.xid,
            "committed_at": iso(change.committed_at),
            "operation": change.operation,
            "primary_key": change.primary_key,
            "previous_key": change.previous_key,
            "context": change.context,
            "changed": {
                name: {side: value for side, value in (("from", was), ("to", now)) if value is not ...}
                for name, was, now in entry.columns
            },
            "row": entry.after,
            "unchanged": list(change.unchanged or []),
        }
    )


def shown(value: Any) -> str:
    return "?" if value is ... else dumps(value)
