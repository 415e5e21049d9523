"""Values and maps in the two encodings, a column at a time: MessagePack, and JSON.

What a value is, is the same in both: integers, floats and booleans are themselves, json and jsonb nested; numeric is
its exact digits as a text, a timestamp a text in ISO 8601 with a Z; everything else PostgreSQL's text.
"""

from __future__ import annotations

import json as python_json
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol

import msgpack
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import json
from tailrace.log.segment import payload_buffers
from tailrace.sinks.nats import packing
from tailrace.types import Form, mapping

Mask = npt.NDArray[np.bool_]
Field = tuple[str, "pa.Array | bytes", Mask | None]
"""A name; what it has in each row, encoded, or in all of them; and the rows that have it, None for all."""

Pair = tuple[bytes, "pa.Array | bytes", Mask | None]
"""The same, its name encoded."""

_ENDLESS: Final = "infinity| BC$"


class Encoding(Protocol):
    def text(self, value: str) -> bytes:
        """One text, for all rows."""

    def integer(self, value: int) -> bytes: ...

    def texts(self, values: pa.Array) -> pa.Array: ...

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        """Of PostgreSQL's texts."""

    def maps(self, fields: Sequence[Field], count: int) -> pa.Array:
        """One map a row, of the fields that it has."""

    def lists(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        """One array a row, of the items that it has."""

    def map_of(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        """A single one."""

    def array_of(self, items: Sequence[bytes]) -> bytes: ...

    def items(self, encoded: pa.Array) -> bytes:
        """One array of all of them."""

    def plain(self, value: object) -> bytes:
        """Of Python's own values, one by one."""


class MsgPack:
    def text(self, value: str) -> bytes:
        return self.plain(value)

    def integer(self, value: int) -> bytes:
        return self.plain(value)

    def texts(self, values: pa.Array) -> pa.Array:
        return packing.texts(values)

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        match mapping(column).form:
            case Form.BOOLEAN:
                return packing.booleans(pc.equal(texts, "t"))
            case Form.INTEGER:
                return packing.integers(texts.cast(pa.int64()))
            case Form.FLOAT:
                return packing.floats(texts.cast(pa.float64()))
            case Form.JSON:
                return packing.nested(texts)
        return packing.texts(_text(texts, column))

    def maps(self, fields: Sequence[Field], count: int) -> pa.Array:
        heads = _counted([there for _, _, there in fields], packing.map_head)
        return _joined([heads, *_pairs((self.text(name), value, there) for name, value, there in fields)], count)

    def lists(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        heads = _counted([there for _, there in items], packing.array_head)
        return _joined([heads, *_pairs((b"", item, there) for item, there in items)], count)

    def map_of(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        return packing.map_head(len(fields)) + b"".join(self.text(name) + value for name, value in fields)

    def array_of(self, items: Sequence[bytes]) -> bytes:
        return packing.array_head(len(items)) + b"".join(items)

    def items(self, encoded: pa.Array) -> bytes:
        return packing.array_head(len(encoded)) + _bytes(encoded)

    def plain(self, value: object) -> bytes:
        found: bytes = msgpack.packb(value)
        return found


class Json:
    def text(self, value: str) -> bytes:
        return json.quoted_text(value).encode()

    def integer(self, value: int) -> bytes:
        return str(value).encode()

    def texts(self, values: pa.Array) -> pa.Array:
        return json.quoted(values).fill_null("null").cast(pa.binary())

    def values(self, texts: pa.Array, column: Column) -> pa.Array:
        if mapping(column).form in (Form.BOOLEAN, Form.INTEGER, Form.FLOAT, Form.JSON):
            return json.values(texts, column).cast(pa.binary())
        return self.texts(_text(texts, column))

    def maps(self, fields: Sequence[Field], count: int) -> pa.Array:
        return self._enclosed(
            b"{", [(self.text(name) + b":", value, there) for name, value, there in fields], b"}", count
        )

    def lists(self, items: Sequence[tuple[bytes, Mask]], count: int) -> pa.Array:
        return self._enclosed(b"[", [(b"", item, there) for item, there in items], b"]", count)

    def map_of(self, fields: Sequence[tuple[str, bytes]]) -> bytes:
        return b"{" + b",".join(self.text(name) + b":" + value for name, value in fields) + b"}"

    def array_of(self, items: Sequence[bytes]) -> bytes:
        return b"[" + b",".join(items) + b"]"

    def items(self, encoded: pa.Array) -> bytes:
        return b"[" + _bytes(pc.binary_join_element_wise(encoded, b",", b""))[:-1] + b"]"

    def plain(self, value: object) -> bytes:
        return python_json.dumps(value, ensure_ascii=False).encode()

    def _enclosed(self, begin: bytes, fields: Sequence[Pair], end: bytes, count: int) -> pa.Array:
        """With commas between what is there: the first that a row has is without."""
        if all(there is None for _, _, there in fields):
            separated = [
                ((b"," if number else b"") + name, value, there) for number, (name, value, there) in enumerate(fields)
            ]
            return _joined([begin, *_pairs(separated), end], count)
        pieces: list[pa.Array | bytes] = [begin]
        is_first = np.ones(count, np.bool_)
        for name, value, there in fields:
            has = np.ones(count, np.bool_) if there is None else there
            comma = pc.if_else(pa.array(is_first | ~has), pa.scalar(b""), pa.scalar(b","))
            pieces += [comma, *_pairs([(name, value, there)])]
            is_first &= ~has
        return _joined([*pieces, end], count)


ENCODINGS: Final[dict[str, Encoding]] = {"msgpack": MsgPack(), "json": Json()}


def _bytes(encoded: pa.Array) -> bytes:
    """End to end, as they lie in memory."""
    return bytes(payload_buffers(encoded)[1])


def _text(texts: pa.Array, column: Column) -> pa.Array:
    match mapping(column).form:
        case Form.TIMESTAMP:
            moments = texts
        case Form.TIMESTAMPTZ:
            moments = pc.replace_substring_regex(texts, r"\+00$", "")
        case _:
            return texts
    iso = pc.binary_join_element_wise(pc.replace_substring(moments, " ", "T"), "Z", "")
    is_endless = pc.match_substring_regex(texts, _ENDLESS)
    return pc.if_else(is_endless, texts, iso) if pc.any(is_endless).as_py() else iso


def _pairs(fields: Iterable[Pair]) -> list[pa.Array | bytes]:
    found: list[pa.Array | bytes] = []
    for name, value, there in fields:
        if there is None:
            found += [name, value]
        else:
            pair = (
                pc.binary_join_element_wise(name, value, b"")
                if isinstance(value, pa.Array)
                else pa.scalar(name + value)
            )
            found.append(pc.if_else(pa.array(there), pair, pa.scalar(b"")))
    return found


def _counted(masks: Sequence[Mask | None], head: Callable[[int], bytes]) -> pa.Array | bytes:
    """What stands before as many as each row has."""
    always = sum(mask is None for mask in masks)
    some = [mask for mask in masks if mask is not None]
    if not some:
        return head(always)
    heads = pa.array([head(always + more) for more in range(len(some) + 1)], pa.binary())
    return heads.take(pa.array(np.sum(some, axis=0)))


def _joined(pieces: Sequence[pa.Array | bytes], count: int) -> pa.Array:
    """End to end; texts that stand next to each other in all rows are one piece."""
    merged: list[pa.Array | bytes] = []
    for piece in pieces:
        if isinstance(piece, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, bytes) for piece in merged):
        return pa.array([b"".join(merged)] * count, pa.binary())
    return pc.binary_join_element_wise(*merged, b"")
