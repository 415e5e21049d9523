"""Rows at the destination: hashes, or JSON strings. Both are read back as PostgreSQL's texts. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace import types
from tailrace.change import Relation
from tailrace.errors import DecodeError
from tailrace.images import Images, record_batch
from tailrace.sinks.documents.document_text import document_text
from tailrace.sinks.documents.raw_json import members
from tailrace.sinks.documents.row_document import row_documents
from tailrace.sinks.messages.piece import join
from tailrace.sinks.valkey.command import Arguments, CommandBatch, Piece, argument, concatenate, head


@dataclass(frozen=True)
class EncodedRows:
    """Rows as commands."""

    keys: Arguments
    commands: memoryview
    """They write the rows. None of the keys exists."""
    count: int


class RowEncoding(Protocol):
    def encode(self, relation: Relation, keys: pa.Array, rows: Images, ttl_s: int) -> EncodedRows:
        """Return the commands that write rows."""

    def read(self, batch: CommandBatch, relation: Relation, keys: Sequence[bytes]) -> None:
        """Add the commands that read rows."""

    def parse(self, relation: Relation, answers: Sequence[Any]) -> Images:
        """Return the rows that were read, as PostgreSQL's texts; a row that does not exist is not present.

        Raises ValueError if an answer is not a row.
        """


class HashRows:
    """A field for each column that is not NULL, with PostgreSQL's text."""

    def encode(self, relation: Relation, keys: pa.Array, rows: Images, ttl_s: int) -> EncodedRows:
        count = len(keys)
        fields = np.zeros(count, np.int64)
        pieces: list[Piece] = []
        for column, texts in zip(relation.columns, rows.batch.columns, strict=True):
            is_null = pc.is_null(texts)
            fields += ~is_null.to_numpy(zero_copy_only=False)
            pair = join([argument(column.name.encode()), argument(texts)], count)
            pieces.append(pair.fill_null(b"") if texts.null_count else pair)
        key = argument(keys)
        sizes = pa.array(2 + 2 * fields) if any(c.null_count for c in rows.batch.columns) else 2 + 2 * len(pieces)
        whole: list[Piece] = [head(sizes), argument(b"HSET"), key, *pieces]
        if ttl_s:
            whole += [head(3), argument(b"EXPIRE"), key, argument(str(ttl_s).encode())]
        return _encoded(key, join(whole, count), 2 if ttl_s else 1)

    def read(self, batch: CommandBatch, relation: Relation, keys: Sequence[bytes]) -> None:
        names = [column.name for column in relation.columns]
        for key in keys:
            batch.add("HMGET", key, *names)

    def parse(self, relation: Relation, answers: Sequence[Any]) -> Images:
        if any(not isinstance(answer, list) for answer in answers):
            raise ValueError("not a hash")
        return _images(relation, [[value and value.decode() for value in answer] for answer in answers])


class JsonRows:
    """A JSON object with a field for each column."""

    def encode(self, relation: Relation, keys: pa.Array, rows: Images, ttl_s: int) -> EncodedRows:
        count = len(keys)
        values = row_documents(rows, relation)
        key = argument(keys)
        pieces = [argument(b"SET"), key, argument(values)]
        if ttl_s:
            pieces += [argument(b"EX"), argument(str(ttl_s).encode())]
        return _encoded(key, join([head(len(pieces)), *pieces], count))

    def read(self, batch: CommandBatch, relation: Relation, keys: Sequence[bytes]) -> None:  # noqa: ARG002
        for key in keys:
            batch.add("GET", key)

    def parse(self, relation: Relation, answers: Sequence[Any]) -> Images:
        rows: list[list[str | None]] = []
        for answer in answers:
            if answer is None:
                rows.append([None] * len(relation.columns))
                continue
            if not isinstance(answer, bytes):
                raise ValueError("not a string")
            found = _members(answer)
            rows.append([document_text(found.get(column.name, "null"), column) for column in relation.columns])
        return _images(relation, rows)


ROW_ENCODINGS: Final[dict[str, RowEncoding]] = {"hash": HashRows(), "json": JsonRows()}


def _encoded(keys: Piece, commands: pa.Array, per_row: int = 1) -> EncodedRows:
    assert isinstance(keys, pa.Array)
    count = len(commands)
    return EncodedRows(Arguments(concatenate(keys), count), concatenate(commands), per_row * count)


def _members(data: bytes) -> dict[str, str]:
    try:
        return members(data.decode())
    except (DecodeError, ValueError, IndexError):
        raise ValueError("not a JSON object") from None


def _images(relation: Relation, rows: Sequence[Sequence[str | None]]) -> Images:
    """Rows as columns. A row exists if it has any value: its key is never NULL."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(relation.columns)
    arrays = [pa.array(values, pa.string()) for values in columns]
    present = np.array([any(value is not None for value in row) for row in rows], np.bool_)
    return Images(record_batch(arrays, types.schema(relation, True), len(rows)), present, {}, None)
