"""Timestamps in ISO 8601, as the log's JSON and the command line use them."""

from __future__ import annotations

from datetime import UTC, datetime


def format_timestamp(time: datetime) -> str:
    """In UTC with microseconds: 2024-02-29T12:00:00.000000Z."""
    return time.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def parse_timestamp(text: str) -> datetime:
    """An ISO timestamp, in UTC unless it names a zone. Raises ValueError for anything else."""
    found = datetime.fromisoformat(text)
    return found if found.tzinfo else found.replace(tzinfo=UTC)
