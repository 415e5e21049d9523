"""What differs between two versions of a schema, in words for an operator. Not every registry says that."""

from __future__ import annotations

import json
from typing import Any


def differences(old: str, new: str) -> list[str]:
    """Return the fields that were added, removed or changed, given two Avro or two JSON Schemas.

    Empty if the old one is something else: it is somebody else's.
    """
    try:
        before, after = _fields(json.loads(old), ""), _fields(json.loads(new), "")
    except (ValueError, KeyError, TypeError, AttributeError):
        return []
    removed = [f"{path} is gone" for path in before if path not in after]
    added = [f"{path} is new" for path in after if path not in before]
    changed = [
        f"{path} was {before[path]} and is {type_}"
        for path, type_ in after.items()
        if path in before and before[path] != type_
    ]
    return [*changed, *removed, *added]


def _fields(schema: Any, path: str) -> dict[str, str]:
    """Return the type of each field of a schema, by its path."""
    found: dict[str, str] = {}
    for branch in _branches(schema):
        if not isinstance(branch, dict):
            continue
        nested = [(field["name"], field["type"]) for field in branch.get("fields", ())]
        nested += branch.get("properties", {}).items()
        for name, type_ in nested:
            inner = f"{path}.{name}" if path else str(name)
            found[inner] = _type_name(type_)
            found |= _fields(type_, inner)
    return found


def _branches(schema: Any) -> list[Any]:
    if isinstance(schema, dict) and "oneOf" in schema:
        return list(schema["oneOf"])
    return schema if isinstance(schema, list) else [schema]


def _type_name(schema: Any) -> str:
    return " or ".join(_branch_name(branch) for branch in _branches(schema))


def _branch_name(schema: Any) -> str:
    if not isinstance(schema, dict):
        # A record that was defined before is referred to by its name.
        return "record" if "." in str(schema) else str(schema)
    type_ = schema.get("type", "anything")
    logical = schema.get("logicalType") or schema.get("connect.name") or schema.get("title")
    if type_ in ("record", "object"):
        return "record"
    if not isinstance(type_, str):
        return _type_name(type_)
    if logical == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    return f"{type_} ({logical})" if logical else type_
