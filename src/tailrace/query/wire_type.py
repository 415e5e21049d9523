"""How a result column is sent: the PostgreSQL OID, size and modifier that are reported for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TEXT: Final = 25
NUMERIC: Final = 1700


@dataclass(frozen=True)
class WireType:
    oid: int
    size: int = -1
    modifier: int = -1
    element: WireType | None = None
    """Set for lists."""
