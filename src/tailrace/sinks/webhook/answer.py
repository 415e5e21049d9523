"""What an answer means: delivered, try again, never try again, or stop. Without I/O."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Final

_SECONDS_DIGITS: Final = 9


class Verdict(Enum):
    DELIVERED = "the receiver has the changes"
    FAILED = "the receiver failed with these changes, and may not fail again"
    UNAVAILABLE = "the receiver accepts no changes now, whichever they are"
    REJECTED = "the receiver will never accept these changes"
    DENIED = "the receiver accepts nothing from this sink until somebody changes a setting"
    GONE = "the receiver wants no more changes"


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    wait_s: float = 0.0
    """How long the receiver asks to wait."""


_UNAVAILABLE: Final = (429, 502, 503, 504)
_FAILED: Final = (408, 425)
_DENIED: Final = (401, 403, 407)
_NO_SUCH_RESOURCE: Final = (404, 405)
_GONE: Final = 410
_NOT_THERE: Final = (404, _GONE)


def judge(status: int, headers: Mapping[str, str], method: str = "POST", *, by_row: bool = False) -> Judgement:
    """Return what an answer means.

    Args:
        status: The status code.
        headers: With names in lower case.
        method: The method of the request.
        by_row: Whether the path depends on the row: then 404 and 405 say something about the change.
    """
    wait_s = retry_after(headers.get("retry-after", ""), time.time())
    # A DELETE that is sent again finds nothing to delete.
    is_deleted = by_row and method == "DELETE" and status in _NOT_THERE
    if 200 <= status < 300 or is_deleted:
        return Judgement(Verdict.DELIVERED)
    if status == _GONE:
        return Judgement(Verdict.GONE)
    if status in _UNAVAILABLE or (wait_s and (status >= 500 or status in _FAILED)):
        return Judgement(Verdict.UNAVAILABLE, wait_s)
    if status in _FAILED or status >= 500:
        return Judgement(Verdict.FAILED)
    if status in _DENIED or status < 400 or (status in _NO_SUCH_RESOURCE and not by_row):
        return Judgement(Verdict.DENIED)
    return Judgement(Verdict.REJECTED)


def retry_after(text: str, now: float) -> float:
    """Return the seconds to wait, from a number of seconds or an HTTP date; 0 without either.

    Args:
        text: The header's value.
        now: Seconds since 1970.
    """
    text = text.strip()
    if text.isascii() and text.isdigit() and len(text) <= _SECONDS_DIGITS:
        return float(text)
    try:
        until = parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return 0.0
    return max(until - now, 0.0)
