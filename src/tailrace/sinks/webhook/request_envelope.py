"""Adds to each message what its request needs: which key it must stay in order with, the method, and headers by row.

These come as headers whose names begin with a colon, which no HTTP header does. They are never sent as such.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final
from urllib.parse import quote, unquote

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.errors import PoisonError
from tailrace.log import json_columns
from tailrace.log.decoding import DELETE, LogicalMessages, TableChanges
from tailrace.sinks.messages.cloudevents_envelope import CONTENT_TYPE
from tailrace.sinks.messages.envelope import Envelope
from tailrace.sinks.messages.message import OutgoingMessages
from tailrace.sinks.messages.payload_encoding import ENCODINGS
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_image import changed_keys, current_values, key_indexes
from tailrace.types import Form, mapping

TABLE: Final = ":table"
"""The table's oid, a space, and the columns of its key."""
KEY: Final = ":key"
"""The row's key; NULL: the change concerns the whole table."""
OLD_KEY: Final = ":old-key"
"""The row's key before the change, if it differs."""
METHOD: Final = ":method"
REQUEST_HEADER: Final = ":header "
"""Followed by the name of a header whose value depends on the change."""

_PATH: Final = ":path"
_DEFAULT_METHOD: Final = "POST"
_CONTENT_TYPES: Final = {Form.JSON: "application/json", Form.BINARY: "application/octet-stream"}
_TEXT: Final = "text/plain; charset=utf-8"
_HEADER_SAFE: Final = "!#$&'()*+,/:;=?@[]-._~"
_MESSAGE: Final = "message"
_MESSAGE_TABLE: Final = "0 "


def escape_path(value: str) -> str:
    """Percent-encode everything but letters, digits and `-._~`."""
    return quote(value, safe="")


def escape_header(value: str) -> str:
    """Percent-encode what a header cannot hold, spaces, and the percent sign."""
    return quote(value, safe=_HEADER_SAFE)


def depends_on_table(template: DestinationTemplate) -> bool:
    """Whether a template has more placeholders than a logical message has values for."""
    return any(name not in (None, "database", "operation") for _, name in template.parts)


@dataclass(frozen=True)
class RequestEnvelope:
    inner: Envelope
    path: DestinationTemplate
    methods: Mapping[str, str]
    """By operation, in lower case. POST for those that are missing."""
    headers: Mapping[str, DestinationTemplate]
    """By name: headers whose value depends on the change."""
    key_column: str = ""
    """The column that changes stay in order by; empty: the table's key."""
    payload_column: str = ""
    """The column that is the content, for an outbox: its type says what the content is."""

    def select(self, changes: TableChanges) -> TableChanges:
        return self.inner.select(changes)

    def change_messages(self, changes: TableChanges, destinations: pa.Array, ids: pa.Array) -> OutgoingMessages:
        _refuse_dot_segments(changes, destinations)
        messages = self.inner.change_messages(changes, destinations, ids)
        columns = {
            TABLE: _repeated(self._table(changes), len(changes)),
            **self._keys(changes),
            **self._content_type(changes),
            **self._address(changes),
        }
        if len(messages) == len(changes):
            return replace(messages, headers={**messages.headers, **columns})
        rows = _rows_of(messages, changes)
        columns = {name: values.take(pa.array(rows)) for name, values in columns.items()}
        # Of a change with several messages, the last one is about the new key, and the others are about the old one.
        is_old = np.append(rows[1:] == rows[:-1], False)
        removals = _removals(changes, rows[is_old])
        addresses = {**self._address(removals), _PATH: self.path.of_changes(removals)}
        _refuse_dot_segments(removals, addresses[_PATH])
        mask = pa.array(is_old)
        for name, values in addresses.items():
            columns[name] = pc.replace_with_mask(columns.get(name, messages.destinations), mask, values)
        destinations = columns.pop(_PATH)
        return replace(messages, destinations=destinations, headers={**messages.headers, **columns})

    def logical_messages(
        self, messages: LogicalMessages, destinations: pa.Array, ids: pa.Array
    ) -> OutgoingMessages | None:
        made = self.inner.logical_messages(messages, destinations, ids)
        if made is None:
            return None
        columns = {
            TABLE: _repeated(_MESSAGE_TABLE, len(made)),
            KEY: pa.nulls(len(made), pa.string()),
            METHOD: _repeated(self.methods.get(_MESSAGE, _DEFAULT_METHOD), len(made)),
        }
        for name, template in self.headers.items():
            if not depends_on_table(template):
                value = template.of_operation(("", ""), _MESSAGE)
                columns[f"{REQUEST_HEADER}{name}"] = _repeated(value, len(made))
        return replace(made, headers={**made.headers, **columns})

    def _key_indexes(self, changes: TableChanges) -> list[int]:
        if not self.key_column:
            return key_indexes(changes.relation)
        return [index for index, column in enumerate(changes.relation.columns) if column.name == self.key_column]

    def _table(self, changes: TableChanges) -> str:
        names = [changes.relation.columns[index].name for index in self._key_indexes(changes)]
        return f"{changes.relation.oid} {json.dumps(names)}"

    def _keys(self, changes: TableChanges) -> dict[str, pa.Array]:
        """Return the keys as JSON arrays of texts: the same for a key, whatever its columns' types are now."""
        indexes = [] if changes.is_truncate else self._key_indexes(changes)
        if not indexes:
            return {KEY: pa.nulls(len(changes), pa.string())}
        found = [current_values(changes, index) for index in indexes]
        keys = _joined([texts for texts, _ in found])
        for texts, present in found:
            known = pc.is_valid(texts) if present is None else pc.and_(pc.is_valid(texts), pa.array(present))
            if not pc.all(known).as_py():  # PostgreSQL may not send a large column of the key that did not change
                keys = pc.if_else(known, keys, pa.scalar(None, pa.string()))
        is_moved = changed_keys(changes)
        if self.key_column or not is_moved.any():
            return {KEY: keys}
        old_keys = _joined([changes.old.batch.column(index) for index in indexes])
        return {KEY: keys, OLD_KEY: pc.if_else(pa.array(is_moved), old_keys, pa.scalar(None, pa.string()))}

    def _content_type(self, changes: TableChanges) -> dict[str, pa.Array]:
        for column in changes.relation.columns:
            if column.name == self.payload_column:
                form = mapping(column).form
                return {CONTENT_TYPE: _repeated(_CONTENT_TYPES.get(form, _TEXT), len(changes))}
        return {}

    def _address(self, changes: TableChanges) -> dict[str, pa.Array]:
        """Return what says where a request goes, beside the path."""
        headers = {f"{REQUEST_HEADER}{name}": template.of_changes(changes) for name, template in self.headers.items()}
        return {METHOD: self._methods(changes), **headers}

    def _methods(self, changes: TableChanges) -> pa.Array:
        if not self.methods:
            return _repeated(_DEFAULT_METHOD, len(changes))
        operations = pc.utf8_lower(json_columns.operations(changes.operation)).dictionary_encode()
        known = [self.methods.get(operation, _DEFAULT_METHOD) for operation in operations.dictionary.to_pylist()]
        return pa.array(known, pa.string()).take(operations.indices)


def _joined(columns: list[pa.Array]) -> pa.Array:
    quoted = [ENCODINGS["json"].texts(texts).cast(pa.string()) for texts in columns]
    return quoted[0] if len(quoted) == 1 else pc.binary_join_element_wise(*quoted, ",")


def _repeated(text: str, count: int) -> pa.Array:
    return pa.array([text], pa.string()).take(pa.array(np.zeros(count, np.int64)))


def _removals(changes: TableChanges, rows: npt.NDArray[np.int64]) -> TableChanges:
    """Return changes of the key as deletes of the rows with the old keys."""
    taken = changes.take(rows)
    return replace(taken, operation=np.full(len(taken), DELETE, taken.operation.dtype))


def _rows_of(messages: OutgoingMessages, changes: TableChanges) -> npt.NDArray[np.int64]:
    """Return the number of each message's change. A change may make several messages."""

    def pairs(lsn: npt.NDArray[np.int64], ordinal: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
        return list(zip(lsn.tolist(), ordinal.tolist(), strict=True))

    numbers = {pair: row for row, pair in enumerate(pairs(changes.at.commit_lsn, changes.at.ordinal))}
    return np.array([numbers[pair] for pair in pairs(messages.at.commit_lsn, messages.at.ordinal)], np.int64)


def _refuse_dot_segments(changes: TableChanges, destinations: pa.Array) -> None:
    """Refuse paths that a server would shorten: a row with `..` must not choose another resource."""
    distinct = destinations.dictionary_encode()
    faulty = [number for number, path in enumerate(distinct.dictionary.to_pylist()) if _has_dot_segment(path)]
    if not faulty:
        return
    rows = np.flatnonzero(np.isin(distinct.indices.to_numpy(), faulty))
    positions = tuple(str(changes.at.position(int(row))) for row in rows)
    raise PoisonError(
        f"{changes.relation.qualified_name}, {positions[0]}: the path would have the segment . or ..",
        "Servers resolve such segments to another path. Use another column in `path`.",
        positions,
    )


def _has_dot_segment(path: str) -> bool:
    return any(unquote(segment) in (".", "..") for segment in path.partition("?")[0].split("/"))
