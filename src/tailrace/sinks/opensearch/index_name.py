"""Names of indices, aliases and fields: what a name cannot have is percent-encoded, so that no two become one. Pure."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

_MOST_NAME_BYTES: Final = 200
"""A name may have 255 bytes, and an index's own name is longer than its alias."""
_MOST_ID_BYTES: Final = 512
_HASHED: Final = "sha256:"
_METADATA: Final = re.compile(
    r"_(id|index|source|routing|field_names|ignored|meta|nested_path|size|tier|type|seq_no|version|primary_term|doc_count"
    r"|feature|data_stream_timestamp)"
)
"""Names that a document's field cannot have."""


def name_part(name: str) -> str:
    """Return the name of a schema or table as it is in an alias."""
    return "".join(c if re.fullmatch(r"[a-z0-9_.-]", c) else _encode(c) for c in name)


def is_index_text(text: str) -> bool:
    """Whether a literal part of a template may be in the name of an index."""
    return re.fullmatch(r"[a-z0-9_.-]*", text) is not None


def alias_name(made: str) -> str:
    """Return the alias for what a template made. A name cannot begin with `_`, `-` or `.`; a long one is hashed."""
    if re.match(r"[_.-]", made):
        made = _encode(made[0]) + made[1:]
    if len(made) > _MOST_NAME_BYTES:
        made = f"{made[: _MOST_NAME_BYTES - 17]}~{hashlib.sha256(made.encode()).hexdigest()[:16]}"
    return made


def new_index_name(alias: str, oid: int) -> str:
    """Return a name for an index. No alias has a tilde there, so it is never one."""
    return f"{alias}~{oid}-{secrets.token_hex(6)}"


@dataclass(frozen=True)
class SinkId:
    """What distinguishes a sink from all others that deliver to the same cluster."""

    ledger: str
    """The index of its cursor."""
    name: str

    @property
    def prefix(self) -> str:
        """What the names of the sink's own aliases begin with."""
        return f"{self.ledger}~{name_part(self.name)}~"

    def write_alias(self, index: str) -> str:
        """Return the alias that the sink itself uses. A missing alias is an error, where a missing index would be
        created with guessed types."""
        return f"{self.prefix}{index.rpartition('-')[2]}"


def displaced_alias(alias: str, oid: int) -> str:
    """Return the alias of a table whose name another table has taken, without a change that shows its new name."""
    return f"{alias}~{oid}"


def field_name(column: str) -> str:
    """Return the name of a column's field. A dot would make it an object."""
    encoded = re.sub(r"[%.]", lambda found: _encode(found.group()), column)
    if _METADATA.fullmatch(encoded) or not encoded.strip():
        encoded = _encode(encoded[0]) + encoded[1:]
    return encoded


def document_id(key: str) -> str:
    """Return the `_id` of a key's text: the text itself, unless it is empty or too long, or looks like a hash."""
    if key and len(key.encode()) <= _MOST_ID_BYTES and not key.startswith(_HASHED):
        return key
    return _HASHED + hashlib.sha256(key.encode()).hexdigest()


def document_ids(keys: pa.Array) -> pa.Array:
    """Return the `_id` of each key."""
    is_odd = pc.or_(pc.equal(keys, ""), pc.greater(pc.binary_length(keys), _MOST_ID_BYTES))
    if not pc.any(pc.or_(is_odd, pc.starts_with(keys, _HASHED))).as_py():
        return keys
    return pa.array([None if key is None else document_id(key) for key in keys.to_pylist()], pa.string())


def _encode(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())
