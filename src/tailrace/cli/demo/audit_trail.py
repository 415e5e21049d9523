"""The demo's audit trail: the history of one order, and one reverted change."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from tailrace import settings
from tailrace.audit import revert, row_history, trail
from tailrace.audit.trail import AuditRow, Selection
from tailrace.capture.postgres.source_connection import connect
from tailrace.embedded.process import wait_until
from tailrace.sinks.audit import AuditOptions

NAME: Final = "audit"
_ORDERS: Final = ("public", "orders")
_MAX_LINES: Final = 12


def show(console: Console, source: settings.SourceSettings, url: str) -> None:
    """Print the history of one order and revert its last change. The shop must be closed, so that it is the last."""
    with trail.connect(AuditOptions(url=url), NAME) as audit_trail, connect(source) as connection:
        changes = _longest_history(audit_trail.find(Selection(table=_ORDERS)))
        if not changes:
            return
        key = str(changes[-1].primary_key)
        console.print(f"history of one order, from the audit trail (tailrace history public.orders {key}):")
        for line in _lines(changes)[:_MAX_LINES]:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        undo = revert.plan(audit_trail, connection, changes[-1:], lambda *_: False, force=False)
        console.print(f"its last change is reverted (tailrace revert --xid {changes[-1].xid} --apply):")
        for statement in undo.statements:
            console.print(f"  {statement.guarded_sql.as_string(connection)};", markup=False, soft_wrap=True)
        revert.apply(connection, undo, {"xid": changes[-1].xid, "by": "demo"}, force=False)
        wait_until(lambda: len(audit_trail.history(_ORDERS, [key])) > len(changes), 30)
        for line in _lines(audit_trail.history(_ORDERS, [key]))[len(_lines(changes)) :]:
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _longest_history(changes: Sequence[AuditRow]) -> list[AuditRow]:
    """Return the changes of the existing order that has the most of them."""
    by_key: dict[str, list[AuditRow]] = defaultdict(list)
    for change in changes:
        if change.primary_key is not None:
            by_key[change.primary_key].append(change)
    existing = [history for history in by_key.values() if history[-1].operation == "UPDATE"]
    return max(existing, key=len, default=[])


def _lines(changes: Sequence[AuditRow]) -> list[str]:
    return [
        line for entry in row_history.entries(changes) for line in (row_history.line(entry), *row_history.diff(entry))
    ]
