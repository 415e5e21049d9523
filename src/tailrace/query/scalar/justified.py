"""PostgreSQL's justify_days, justify_hours and justify_interval, on an interval's months, days and microseconds."""

from __future__ import annotations

from typing import Final

Parts = dict[str, int]

_DAY_US: Final = 86_400_000_000
_MONTH_DAYS: Final = 30


def _parts(months: int, days: int, microseconds: int) -> Parts:
    return {"months": months, "days": days, "microseconds": microseconds}


def _carried(large: int, small: int, size: int) -> tuple[int, int]:
    """Whole units moved from the small part to the large one, towards zero."""
    whole = abs(small) // size * (1 if small >= 0 else -1)
    return large + whole, small - whole * size


def _of_one_sign(large: int, small: int, size: int) -> tuple[int, int]:
    if large > 0 > small:
        return large - 1, small + size
    if large < 0 < small:
        return large + 1, small - size
    return large, small


def hours(months: int, days: int, microseconds: int) -> Parts:
    """Whole days out of the hours."""
    return _parts(months, *_of_one_sign(*_carried(days, microseconds, _DAY_US), _DAY_US))


def days(months: int, days: int, microseconds: int) -> Parts:
    """Whole months of 30 days out of the days."""
    return _parts(*_of_one_sign(*_carried(months, days, _MONTH_DAYS), _MONTH_DAYS), microseconds)


def interval(months: int, days: int, microseconds: int) -> Parts:
    """Both, with all parts of one sign."""
    if (days > 0) == (microseconds > 0) and (days < 0) == (microseconds < 0):
        months, days = _carried(months, days, _MONTH_DAYS)
    days, microseconds = _carried(days, microseconds, _DAY_US)
    months, days = _carried(months, days, _MONTH_DAYS)
    if months > 0 and (days < 0 or (days == 0 and microseconds < 0)):
        months, days = months - 1, days + _MONTH_DAYS
    elif months < 0 and (days > 0 or (days == 0 and microseconds > 0)):
        months, days = months + 1, days - _MONTH_DAYS
    return _parts(months, *_of_one_sign(days, microseconds, _DAY_US))
