"""Durations such as `14d`."""

from __future__ import annotations

import re
from datetime import timedelta

from tailrace.errors import ConfigError

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_duration(text: str) -> timedelta:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhdw])\s*", text)
    if match is None:
        raise ConfigError(f"{text!r} is not a duration", "write a number and m, h, d or w, such as 14d")
    return timedelta(**{_UNITS[match[2]]: float(match[1])})
