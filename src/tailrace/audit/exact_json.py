"""JSON whose numbers keep their digits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any


def loads(text: str | bytes) -> Any:
    return json.loads(text, parse_float=Decimal, parse_constant=_refused)


def _refused(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def dumps(value: Any) -> str:
    match value:
        case Decimal():
            return str(value)
        case Mapping():
            return "{" + ", ".join(f"{dumps(str(name))}: {dumps(one)}" for name, one in value.items()) + "}"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case Sequence():
            return "[" + ", ".join(map(dumps, value)) + "]"
    return json.dumps(value)


def text(value: Any) -> str | None:
    """What PostgreSQL reads as a value of the column that this was the JSON of."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "t" if value else "f"
    return dumps(value)
