"""Names as tokens of NATS subjects."""

from __future__ import annotations

import re
from typing import Final

MESSAGES: Final = "_message"
"""The subject token of logical messages, in place of a table's. The token of a table with this name is encoded."""


def token(name: str) -> str:
    """Return a name as one subject token: whitespace, dots, wildcards and control characters are percent-encoded."""
    coded = re.sub(r"[\s.*>%\x00-\x20\x7f]", lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), name)
    return f"%5F{coded[1:]}" if coded == MESSAGES else coded
