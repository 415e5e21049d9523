"""JSON that preserves the digits of numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any


def loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def dumps(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{dumps(str(name))}: {dumps(inner)}" for name, inner in value.items()) + "}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Sequence():
            return "[" + ", ".join(map(dumps, value)) + "]"
    return json.dumps(value)


def text(value: Any) -> str | None:
    """PostgreSQL's text of a column's value, given as JSON."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "t" if value else "f"
    return dumps(value)
