"""Converts documents of one definition of a table into documents of the next. Pure.

PostgreSQL does not log the rows that ALTER TABLE changes. An added column has its default in them, a renamed one its
values, and one of another type the values cast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tailrace import types
from tailrace.change import Column, Relation
from tailrace.log.json_columns import quote_text
from tailrace.sinks.documents.document_text import document_text
from tailrace.sinks.documents.key_text import key_texts
from tailrace.sinks.documents.raw_json import members
from tailrace.sinks.opensearch.index_mapping import FieldMapping, field_values
from tailrace.sinks.opensearch.index_name import document_id, field_name
from tailrace.sinks.opensearch.stored_document import StoredDocument
from tailrace.state.cast import column_texts, recast
from tailrace.state.evolution import ColumnOrigin, dropped_columns, origins
from tailrace.state.fold import has_key, key_columns


def is_compatible(
    old: Relation, new: Relation, old_fields: Mapping[str, FieldMapping], new_fields: Mapping[str, FieldMapping]
) -> bool:
    """Whether documents and fields stay as they are, apart from new fields."""
    if dropped_columns(old, new) or has_key(old) != has_key(new):
        return False
    found = origins(old, new)
    for column, origin in zip(new.columns, found, strict=True):
        if origin.index is None:
            if origin.missing is not None:
                return False
            continue
        before = old.columns[origin.index]
        name = field_name(column.name)
        if before.name != column.name or old_fields[name] != new_fields[name] or not _is_same_text(before, column):
            return False
    return not has_key(new) or _key_origins(new, found) == key_columns(old)


def _key_origins(new: Relation, found: Sequence[ColumnOrigin]) -> list[int | None]:
    return [found[index].index for index in key_columns(new)]


def _is_same_text(old: Column, new: Column) -> bool:
    return types.mapping(old) == types.mapping(new)


@dataclass(frozen=True)
class DocumentConversion:
    old: Relation
    new: Relation

    def convert(self, documents: Mapping[str, StoredDocument]) -> tuple[list[str], list[str]]:
        """Return the ids and the sources that documents, given by id, have from now on."""
        sources = [members(document.source) for document in documents.values()]
        found = origins(self.old, self.new)
        columns = [
            self._column(sources, column, origin) for column, origin in zip(self.new.columns, found, strict=True)
        ]
        names = [f"{quote_text(field_name(column.name))}:" for column in self.new.columns]
        made = [
            "{" + ",".join(name + value for name, value in zip(names, row, strict=True) if value is not None) + "}"
            for row in (zip(*columns, strict=True) if columns else [()] * len(sources))
        ]
        return self._ids(list(documents), columns, found), made

    def _column(self, sources: Sequence[Mapping[str, str]], column: Column, origin: ColumnOrigin) -> list[str | None]:
        if origin.index is None:
            (value,) = _encode(pa.array([origin.missing], pa.string()), column)
            return [value] * len(sources)
        before = self.old.columns[origin.index]
        values = [source.get(field_name(before.name)) for source in sources]
        if _is_same_text(before, column):
            return values
        texts = pa.array([_text(value, before) for value in values], pa.string())
        array, special = recast(texts, before, column)
        return _encode(column_texts(array, column, special), column)

    def _ids(self, ids: list[str], columns: Sequence[Sequence[str | None]], found: Sequence[ColumnOrigin]) -> list[str]:
        """Return the documents' ids, which change with the key."""
        if not has_key(self.new):
            return ids
        key = key_columns(self.new)
        is_same_type = all(
            origin is not None and _is_same_text(self.old.columns[origin], self.new.columns[index])
            for index, origin in zip(key, _key_origins(self.new, found), strict=True)
        )
        if has_key(self.old) and is_same_type and _key_origins(self.new, found) == key_columns(self.old):
            return ids
        texts = [
            pa.array([_text(value, self.new.columns[index]) for value in columns[index]], pa.string()) for index in key
        ]
        return [document_id(text or "") for text in key_texts(texts).to_pylist()]


def _text(value: str | None, column: Column) -> str | None:
    return None if value is None else document_text(value, column)


def _encode(texts: pa.Array, column: Column) -> list[str | None]:
    return [None if value is None else value.decode() for value in field_values(texts, column).to_pylist()]
