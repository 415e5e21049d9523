"""JSON objects of the store with their own checksum: `sha256`, over all other keys. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tailrace import stored_json
from tailrace.errors import CorruptError


def dump(raw: Mapping[str, Any]) -> str:
    return json.dumps({**raw, "sha256": _digest(raw)}, ensure_ascii=False, indent=1)


def parse(text: bytes, name: str, version: int, *, not_one: str, hint: str) -> dict[str, Any]:
    """Parse what `dump` returned, and check its checksum and its `version`.

    Args:
        text: The object's bytes.
        name: Its key, for errors.
        version: The format version that the caller can read.
        not_one: The end of the error about anything else, such as "does not describe a snapshot".
        hint: What the operator should do about a damaged object.
    """
    try:
        raw: dict[str, Any] = stored_json.parse(text)
        digest = raw.pop("sha256")
    except stored_json.ERRORS:
        raise CorruptError(f"{name} {not_one}", hint) from None
    if digest != _digest(raw):
        raise CorruptError(f"{name}: checksum does not match", hint)
    if raw.get("version") != version:
        raise CorruptError(f"{name} has format version {raw.get('version')}", "read it with a newer Tailrace")
    return raw


def _digest(raw: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
