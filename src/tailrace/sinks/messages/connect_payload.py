"""What Debezium's events say, as columns: a structure of Kafka Connect, whose schema gives the types.

A field is a column of the table, a structure, a column of texts or integers, or the value's JSON as Connect's JSON
converter writes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column
from tailrace.log import json_columns
from tailrace.sinks.messages.connect_schema import ConnectType, quoted_strings
from tailrace.sinks.messages.payload import Integers, Texts

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ConnectColumn:
    """A column of the table."""

    texts: pa.Array
    """As PostgreSQL prints them."""
    column: Column
    type: ConnectType
    replaced: Mask | None = None
    """The rows that have `replacement` instead (None: no row)."""
    replacement: str = "null"
    """A JSON value, such as the placeholder for a large value that PostgreSQL did not send."""

    def json(self) -> pa.Array:
        values = self.type.convert(self.texts).fill_null("null")
        return values if self.replaced is None else pc.if_else(pa.array(self.replaced), self.replacement, values)


@dataclass(frozen=True)
class ConnectStruct:
    fields: Sequence[tuple[str, ConnectValue]]
    """By name."""
    present: Mask | None = None
    """The rows that have it (None: all). In the others it is null."""

    def json(self, count: int) -> pa.Array:
        """Return the JSON of each row, in the order of the fields."""
        pieces = self._pieces(count)
        if not any(isinstance(piece, pa.Array) for piece in pieces):
            objects = pa.array(["".join(pieces)], pa.string()).take(pa.array(np.zeros(count, np.int64)))
        else:
            objects = pc.binary_join_element_wise(*pieces, "")
        if self.present is None or self.present.all():
            return objects
        return pc.if_else(pa.array(self.present), objects, "null")

    def _pieces(self, count: int) -> list[pa.Array | str]:
        """Return what the objects consist of, as if all rows had one."""
        pieces: list[pa.Array | str] = ["{"]
        for number, (name, value) in enumerate(self.fields):
            pieces.append(("," if number else "") + json_columns.quote_text(name) + ":")
            match value:
                case ConnectColumn():
                    pieces.append(value.json())
                case ConnectStruct(present=present) if present is None or present.all():
                    pieces += value._pieces(count)
                case ConnectStruct():
                    pieces.append(value.json(count))
                case Texts() | Integers():
                    pieces.append(_json(value))
                case _:
                    pieces.append(value)
        return [*pieces, "}"]


def _json(column: Texts | Integers) -> pa.Array | str:
    values = column.values
    if isinstance(values, int):
        return str(values)
    if isinstance(values, str):
        return json_columns.quote_text(values)
    return quoted_strings(values) if isinstance(column, Texts) else pc.cast(values, pa.string()).fill_null("null")


ConnectValue: TypeAlias = ConnectColumn | ConnectStruct | Texts | Integers | pa.Array | str
"""JSON is an array of texts, or the same text for all rows. Null integers are null."""


@dataclass(frozen=True)
class ConnectPayload:
    schema: str
    """The schema as Connect's JSON converter prints it."""
    value: ConnectStruct

    @property
    def present(self) -> Mask | None:
        return self.value.present


class ConnectEncoding(Protocol):
    """Encodes payloads as one of Connect's converters does. `RegistryEncoding` has those with a schema registry."""

    def encode_keys(self, keys: ConnectPayload, destinations: pa.Array) -> pa.Array:
        """Encode the keys of messages to these destinations."""

    def encode_values(self, values: ConnectPayload, destinations: pa.Array) -> pa.Array:
        """Encode the values of messages to these destinations."""
