"""The error for a replica that differs from what was delivered to it."""

from __future__ import annotations

from tailrace.change import Relation
from tailrace.delivery.contract import REWIND
from tailrace.errors import SinkDiverged


def may_differ(relation: Relation, what: str) -> bool:
    """Whether a statement may find fewer rows than it names: the source does not say which rows exist."""
    return relation.is_upsert and what in ("a delete", "an end")


def divergence(sink: str, table: str, span: str, what: str) -> SinkDiverged:
    """Return the error for a step that does not fit the replica.

    Args:
        sink: The sink's name.
        table: The table at the destination.
        span: The first and last position of the changes.
        what: What does not fit.
    """
    return SinkDiverged(
        f"{table}, {span}: {what}: somebody else wrote to the replica; this step was not applied",
        REWIND.format(sink),
    )
