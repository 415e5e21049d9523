"""The demo's audit trail: one order's life, and one change taken back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from tailrace import settings
from tailrace.audit import history, revert, trail
from tailrace.audit.trail import Row, Selection
from tailrace.embedded.process import wait_until
from tailrace.sinks.audit import AuditOptions
from tailrace.source.connection import connect

NAME: Final = "audit"
_ORDERS: Final = ("public", "orders")
_LINES: Final = 12


def show(console: Console, source: settings.Source, url: str) -> None:
    """With nobody in the shop any more: what is taken back was the last that happened to its row."""
    with trail.at(AuditOptions(url=url), NAME) as found, connect(source) as connection:
        life = _chosen(found.find(Selection(table=_ORDERS)))
        if not life:
            return
        key = str(life[-1].primary_key)
        console.print(f"one order's life, from the audit trail (tailrace history public.orders {key}):")
        for line in _told(life)[:_LINES]:
            console.print(f"  {line}", markup=False, soft_wrap=True)
        undo = revert.plan(found, connection, life[-1:], lambda *_: False, force=False)
        console.print(f"and its last change taken back (tailrace revert --xid {life[-1].xid} --apply):")
        for statement in undo.statements:
            console.print(f"  {statement.guarded.as_string(connection)};", markup=False, soft_wrap=True)
        revert.apply(connection, undo, {"xid": life[-1].xid, "by": "demo"}, force=False)
        wait_until(lambda: len(found.life(_ORDERS, [key])) > len(life), 30)
        for line in _told(found.life(_ORDERS, [key]))[len(_told(life)) :]:
            console.print(f"  {line}", markup=False, soft_wrap=True)


def _chosen(changes: Sequence[Row]) -> list[Row]:
    """The order that most happened to, of those that are still there."""
    lives: dict[str, list[Row]] = defaultdict(list)
    for change in changes:
        if change.primary_key is not None:
            lives[change.primary_key].append(change)
    there = [life for life in lives.values() if life[-1].operation == "UPDATE"]
    return max(there, key=len, default=[])


def _told(life: Sequence[Row]) -> list[str]:
    return [line for entry in history.entries(life) for line in (history.line(entry), *history.diff(entry))]
