"""A row's history for people to read: who changed which columns, when, and how. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tailrace.audit.exact_json import dumps
from tailrace.audit.trail import AuditRow, AuditTransaction
from tailrace.log.terminal import printable, shorten
from tailrace.log.timestamp import format_timestamp
from tailrace.sinks.audit.change_row import UNCHANGED


@dataclass(frozen=True)
class HistoryEntry:
    """One change of a row, and the row before it."""

    change: AuditRow
    before: Mapping[str, Any]
    """As far as it is known."""
    after: Mapping[str, Any] | None
    """With unsent values taken from before; None if the row was deleted."""

    @property
    def columns(self) -> Iterator[tuple[str, Any, Any]]:
        """Name, old value and new value of columns that changed; unknown values are `...`."""
        names = [*(self.after or {}), *(name for name in self.before if name not in (self.after or {}))]
        for name in names:
            was = self.before.get(name, ...)
            now = ... if self.after is None else self.after.get(name, ...)
            if now == UNCHANGED and name in (self.change.unchanged or ()):
                continue
            if was != now or type(was) is not type(now):
                yield name, was, now


def entries(rows: Sequence[AuditRow]) -> Iterator[HistoryEntry]:
    """The changes of one row, in log order."""
    known: Mapping[str, Any] = {}
    for row in rows:
        before: Mapping[str, Any] = {**known, **(row.before or {})} if row.operation in ("UPDATE", "DELETE") else {}
        if row.operation == "TRUNCATE":
            before = known
        yield HistoryEntry(row, before, row.after)
        known = {**known, **row.after} if row.after is not None and row.operation == "UPDATE" else row.after or {}


def as_of(rows: Sequence[AuditRow], time: datetime) -> HistoryEntry | None:
    """The last change of the row up to a time; None if there was none yet."""
    found = [entry for entry in entries(rows) if entry.change.committed_at <= time]
    return found[-1] if found else None


def line(entry: HistoryEntry) -> str:
    """One line that summarizes a change."""
    change = entry.change
    parts = [format_timestamp(change.committed_at), f"{change.operation:<8}", str(change.position), f"xid {change.xid}"]
    if change.context is not None:
        parts.append(context_text(change.context))
    return printable("  ".join(parts))


def recent_line(entry: HistoryEntry) -> str:
    """One line that summarizes a change among those of other rows."""
    key = "" if entry.change.primary_key is None else f"  key {shorten(entry.change.primary_key)}"
    return printable(f"{line(entry)}{key}")


def transaction_line(transaction: AuditTransaction) -> str:
    """One line that summarizes a transaction."""
    counts = ", ".join(f"{count:,} {name}" for name, count in transaction.operations.items())
    parts = [format_timestamp(transaction.committed_at), str(transaction.position), f"xid {transaction.xid}", counts]
    parts.append(", ".join(transaction.tables))
    if transaction.context is not None:
        parts.append(context_text(transaction.context))
    return printable("  ".join(parts))


def transaction_to_json(transaction: AuditTransaction) -> str:
    return dumps(
        {
            "position": str(transaction.position),
            "xid": transaction.xid,
            "committed_at": format_timestamp(transaction.committed_at),
            "operations": dict(transaction.operations),
            "tables": list(transaction.tables),
            "context": transaction.context,
        }
    )


def context_text(context: Any) -> str:
    if not isinstance(context, dict):
        return shorten(value_text(context))
    return " ".join(
        f"{name}={shorten(value if isinstance(value, str) else value_text(value))}" for name, value in context.items()
    )


def diff(entry: HistoryEntry) -> Iterator[str]:
    """A line for each column that changed."""
    found = list(entry.columns)
    width = max((len(name) for name, _, _ in found), default=0)
    for name, was, now in found:
        if entry.change.operation in ("INSERT", "CREATE"):
            text = shorten(value_text(now))
        elif entry.after is None:
            text = f"{shorten(value_text(was))} →"
        else:
            text = f"{shorten(value_text(was))} → {shorten(value_text(now))}"
        yield printable(f"    {name:<{width}}  {text}")


def to_json(entry: HistoryEntry) -> str:
    change = entry.change
    return dumps(
        {
            "position": str(change.position),
            "xid": change.xid,
            "committed_at": format_timestamp(change.committed_at),
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


def value_text(value: Any) -> str:
    return "?" if value is ... else dumps(value)
