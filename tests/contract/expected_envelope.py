"""The envelope `tailrace` as it must be: built value by value from changes, without the sink's code."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

from tailrace.change import Change, Column, Image, Operation, Unchanged
from tailrace.types import Form, mapping


@dataclass(frozen=True)
class ExpectedEnvelope:
    encoding: str = "json"

    def data(self, change: Change) -> dict[str, Any]:
        assert change.relation is not None
        columns, key = change.relation.columns, change.relation.key
        if change.operation is Operation.DELETE:
            assert change.old is not None
            return {
                c.name: self.value(v, c) if c.name in key or not key else None
                for c, v in zip(columns, change.old, strict=True)
            }
        if change.new is None:
            return {}
        return {
            c.name: self.value(v, c)
            for c, v in zip(columns, fill_unsent(change), strict=True)
            if not isinstance(v, Unchanged)
        }

    def more(self, change: Change) -> dict[str, Any]:
        assert change.relation is not None
        columns, key = change.relation.columns, change.relation.key
        found: dict[str, Any] = {"options": list(change.truncate_options)} if change.truncate_options else {}
        if change.new is not None:
            filled = fill_unsent(change)
            unknown = [c.name for c, v in zip(columns, filled, strict=True) if isinstance(v, Unchanged)]
            found |= {"unchanged": unknown} if unknown else {}
            if change.operation is Operation.UPDATE and change.old is not None and key:
                pairs = list(zip(columns, change.old, filled, strict=True))
                if any(old != new for c, old, new in pairs if c.name in key):
                    found["old_key"] = {c.name: self.value(old, c) for c, old, _ in pairs if c.name in key}
        return found

    def value(self, value: bytes | Unchanged | None, column: Column) -> Any:
        assert not isinstance(value, Unchanged)
        if value is None:
            return None
        text = bytes(value).decode()
        match mapping(column).form:
            case Form.BOOLEAN:
                return text == "t"
            case Form.INTEGER:
                return int(text)
            case Form.FLOAT:
                if self.encoding == "json":
                    return json.loads(text) if math.isfinite(float(text)) else text
                return float(text)
            case Form.JSON:
                return json.loads(text, parse_int=self._integer)
            case Form.TIMESTAMP | Form.TIMESTAMPTZ if "infinity" not in text and not text.endswith("BC"):
                return text.removesuffix("+00").replace(" ", "T") + "Z"
            case _:
                return text

    def _integer(self, digits: str) -> Any:
        fits = -(2**63) <= int(digits) < 2**64
        return int(digits) if fits or self.encoding == "json" else digits


def fill_unsent(change: Change) -> Image:
    """The new row, where unsent values are replaced by the old ones if those were sent."""
    assert change.new is not None
    if change.old is None or change.old_is_key:
        return change.new
    return tuple([old if isinstance(new, Unchanged) else new for new, old in zip(change.new, change.old, strict=True)])


def difference(found: Any, wanted: Any) -> str:
    keys = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
    if keys == ["data"]:
        return difference(found["data"], wanted["data"])
    return "; ".join(f"{key}: {found.get(key)}, not {wanted.get(key)}" for key in keys)


def normalize(value: Any) -> Any:
    """Make values comparable: NaN equals itself, and true does not equal 1."""
    match value:
        case dict():
            return {key: normalize(one) for key, one in value.items()}
        case list():
            return [normalize(one) for one in value]
        case float() if math.isnan(value):
            return "not a number"
        case bool():
            return ("boolean", value)
    return (type(value).__name__, value)
