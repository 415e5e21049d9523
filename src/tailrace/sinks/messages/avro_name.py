"""Names that Avro allows: letters, digits and underscores of ASCII, and no digit at the beginning."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from tailrace.errors import ConfigError

_INVALID: Final = re.compile(r"[^A-Za-z0-9_]")
_VALID: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def avro_name(name: str) -> str:
    """Return a name as it is if Avro allows it; else with `_u00e9` for each character that Avro does not allow."""
    if _VALID.fullmatch(name):
        return name
    escaped = _INVALID.sub(lambda match: "".join(f"_u{unit:04x}" for unit in _utf16(match[0])), name)
    return escaped if _VALID.fullmatch(escaped) else f"_{escaped}"


def full_name(parts: Iterable[str]) -> str:
    """Return a namespace and a name, from parts that may contain any character."""
    return ".".join(avro_name(part) for part in parts if part)


def field_names(names: Sequence[str], record: str) -> list[str]:
    """Return the names of a record's fields; raise a ConfigError if two of them become the same."""
    found = [avro_name(name) for name in names]
    if len(set(found)) < len(found):
        twice = next(name for name in found if found.count(name) > 1)
        both = [name for name, escaped in zip(names, found, strict=True) if escaped == twice]
        raise ConfigError(
            f"columns {both[0]} and {both[1]} of {record} have the same name in Avro, {twice}",
            "Exclude one of them with `columns` in the sink's settings, or use another encoding.",
        )
    return found


def _utf16(character: str) -> list[int]:
    data = character.encode("utf-16-be")
    return [int.from_bytes(data[place : place + 2], "big") for place in range(0, len(data), 2)]
