"""Has a sink correct the rows that differ, and compares them again."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tailrace.delivery import control, repair
from tailrace.delivery.repair import MAX_ROWS, Repair, RepairOutcome
from tailrace.errors import SinkError
from tailrace.store import Store
from tailrace.verify.cancellation import cancelled
from tailrace.verify.report import SinkReport, TableReport, merged
from tailrace.verify.verification import Verification

MAX_ROUNDS: Final = 5
"""Rows that change all the time are left out of a repair, and get another chance in the next round."""
_POLL_S: Final = 0.2


@dataclass
class RepairTotals:
    applied: int = 0
    rounds: int = 0


def repair_differences(
    verification: Verification, report: SinkReport, store: Store, wait_s: float
) -> tuple[SinkReport, RepairTotals]:
    """Correct what differs and compare again, until nothing differs or nothing more can be corrected.

    Args:
        verification: What compared the sink.
        report: What it found.
        store: The log's store.
        wait_s: How long to wait for the sink to execute a repair.
    """
    totals = RepairTotals()
    while totals.rounds < MAX_ROUNDS:
        repairs = [found for table in report.tables if (found := _repair_of(table)) is not None]
        if not repairs:
            break
        totals.rounds += 1
        outcomes = _execute(verification, store, repairs, wait_s)
        totals.applied += sum(outcome.applied for outcome in outcomes)
        again = verification.run([own.relation.oid for own in repairs])
        report.tables = merged(report, again.tables)
        report.source_lsn, report.cursor, report.verified_at = again.source_lsn, again.cursor, again.verified_at
        report.seconds += again.seconds
    return report, totals


def _repair_of(report: TableReport) -> Repair | None:
    """What corrects a table's rows; None if nothing differs, or rows cannot be corrected one by one."""
    if not report.differences or report.stored is None:
        return None
    if reason := _reason_against(report):
        if reason not in report.notes:
            report.notes.append(reason)
        return None
    stored = report.stored
    missing = [d.expected for d in report.differences if d.kind == "missing" and d.expected is not None]
    changed = [d.expected for d in report.differences if d.kind == "changed" and d.expected is not None]
    extra = [d.found for d in report.differences if d.kind == "extra" and d.found is not None]
    return Repair(stored.relation, stored.target, report.position, missing, changed, extra)


def _reason_against(report: TableReport) -> str:
    reload = f"`tailrace snapshot {report.table}`, then `tailrace sink reload SINK {report.table}`"
    if report.ranges_unread or len(report.differences) > MAX_ROWS:
        return f"too many rows differ to correct them one by one: {reload}"
    if not report.can_repair:
        return f"this sink's rows cannot be corrected one by one: {reload}"
    if report.notes:
        return f"rows cannot be corrected while not all of their columns are compared: {reload}"
    return ""


def _execute(verification: Verification, store: Store, repairs: Sequence[Repair], wait_s: float) -> list[RepairOutcome]:
    """Have the process that delivers to the sink execute repairs."""
    sink = verification.configured.name
    for own in repairs:
        own.save(store, sink)
    ids = [own.id for own in repairs]
    control.repair(store, sink, ids)
    outcomes: dict[str, RepairOutcome] = {}
    deadline = time.monotonic() + wait_s
    try:
        while len(outcomes) < len(ids):
            for id in ids:
                if id not in outcomes and (outcome := repair.load_outcome(store, sink, id)) is not None:
                    outcomes[id] = outcome
                    if outcome.error:
                        raise SinkError(
                            f"sink {sink} could not correct the rows: {outcome.error}",
                            "somebody else may write to the destination; verify again",
                        )
            if len(outcomes) < len(ids) and time.monotonic() > deadline:
                raise SinkError(
                    f"sink {sink} did not correct the rows within {wait_s:.0f} s: it is not running, or is paused",
                    "start it with `tailrace run` or `deliver`, and see `tailrace status`",
                )
            if verification.is_cancelled():
                raise cancelled()
            time.sleep(_POLL_S)
    finally:
        control.finish_repair(store, sink, [id for id in ids if id not in outcomes])
        for own in repairs:
            own.remove(store, sink)
    return list(outcomes.values())
