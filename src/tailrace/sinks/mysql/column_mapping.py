"""The columns that a table has in MySQL or MariaDB, and the conversion of their values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Column, Relation
from tailrace.errors import PoisonError, SinkRefused
from tailrace.sinks.database.staged_rows import Positions
from tailrace.sinks.mysql.flavour import Flavour
from tailrace.sinks.mysql.identifier import column_names, quote
from tailrace.sinks.mysql.type_mapping import (
    CHARACTER_BYTES,
    LONGTEXT,
    MysqlType,
    is_partial,
    mysql_type,
    varbinary,
    varchar,
)
from tailrace.sinks.mysql.unrepresentable import OnUnrepresentable, UnrepresentablePolicy
from tailrace.sinks.mysql.value_conversion import Rows

MAX_COLUMNS: Final = 1017
"""InnoDB's limit."""
MAX_KEY_BYTES: Final = 3072
"""InnoDB's limit for all columns of a key together: 768 characters."""
_MAX_ROW_BYTES: Final = 65_535 - 1_535
"""MySQL's limit, less what columns need that the sink adds."""
_MAX_PAGE_BYTES: Final = 8_126 - 526
"""InnoDB's limit for what is not moved out of a row's page, less what those columns and the row's header need."""
_SMALLER_KEY: Final = (
    "use a smaller replica identity (ALTER TABLE … REPLICA IDENTITY USING INDEX …), or exclude the table"
)


@dataclass(frozen=True)
class ColumnMapping:
    """One column of a table, in PostgreSQL and in MySQL."""

    table: str
    """`schema.table` at the source, for messages."""
    column: Column
    """At the source."""
    name: str
    """In MySQL."""
    type: MysqlType
    nullable: bool
    collation: str | None
    """None if it is not a text."""
    is_key: bool
    on_unrepresentable: OnUnrepresentable

    @property
    def sql_type(self) -> str:
        """The type as SQL declares it, with its collation: `VARCHAR(20) COLLATE utf8mb4_nopad_bin`."""
        if self.collation is None:
            return self.type.sql
        return f"{self.type.sql} CHARACTER SET utf8mb4 COLLATE {self.collation}"

    @property
    def declaration(self) -> str:
        """The column as CREATE TABLE and ALTER TABLE declare it."""
        return f"{quote(self.name)} {self.sql_type} {'NULL' if self.nullable else 'NOT NULL'}"

    @property
    def can_be_key(self) -> bool:
        return not self.type.is_long

    def encode(self, texts: pa.Array, positions: Positions | None = None) -> pa.Array:
        """MySQL's text of values, or their bytes if the column is binary.

        Args:
            texts: PostgreSQL's texts.
            positions: The positions of the rows' changes, for messages.

        Raises PoisonError for values that the type cannot hold and that the settings do not allow to change.
        """
        return self.type.conversion.encode(self._representable(texts, positions))

    def decode(self, values: Sequence[Any]) -> pa.Array:
        """PostgreSQL's texts of values, from what PyMySQL reads."""
        return self.type.conversion.decode(values, self.column)

    def comparable(self, texts: pa.Array) -> pa.Array:
        """PostgreSQL's texts as `decode` returns them once they are in MySQL.

        Numerics without a scale have no zeros at their end. Values that the type cannot hold are replaced as in
        `encode`, or raise PoisonError.
        """
        return self.type.conversion.comparable(self._representable(texts, None))

    def _representable(self, texts: pa.Array, positions: Positions | None) -> pa.Array:
        """The texts, with values that the type cannot hold replaced as the settings say."""
        rows = self.type.conversion.unrepresentable(texts)
        return self._replaced(texts, rows, positions) if len(rows) else texts

    def _replaced(self, texts: pa.Array, rows: Rows, positions: Positions | None) -> pa.Array:
        replacements: list[str | None] = [None] * len(rows)
        if self.on_unrepresentable == "clamp":
            nearest = self.type.conversion.nearest
            replacements = [nearest(text) for text in texts.take(pa.array(rows)).to_pylist()]
        if self.on_unrepresentable == "null" or None not in replacements:
            mask = np.zeros(len(texts), np.bool_)
            mask[rows] = True
            return pc.replace_with_mask(texts, pa.array(mask), pa.array(replacements, pa.string()))
        bad = [row for row, replacement in zip(rows.tolist(), replacements, strict=True) if replacement is None]
        raise self._refusal(bad, positions)

    def _refusal(self, rows: Sequence[int], positions: Positions | None) -> PoisonError:
        found = () if positions is None else tuple(dict.fromkeys(str(positions[row]) for row in rows))
        at = f" at {found[0]}" if found else ""
        hint = "use a shorter key, or make it a dead letter (on_poison)"
        if is_partial(self.column):
            choices = "text" if self.is_key else "null, clamp or text"
            hint = (
                f"on_unrepresentable says what to do with such values: {choices}; or make it a dead letter (on_poison)"
            )
        return PoisonError(
            f"{self.table}, column {self.column.name}{at}: {self.type.sql} cannot hold the value", hint, found
        )


def map_relation(
    relation: Relation, flavour: Flavour, policy: UnrepresentablePolicy, *, reserved_key_bytes: int = 0
) -> tuple[ColumnMapping, ...]:
    """Map a table's columns, in their order.

    Args:
        relation: The table at the source.
        flavour: The destination.
        policy: What to do with values that MySQL's types cannot hold.
        reserved_key_bytes: What the sink's own columns take of the key, such as those of a history.

    Raises SinkRefused if the destination cannot hold such a table.
    """
    _check_counts(relation, flavour)
    choices = {column.name: policy.of(relation, column) for column in relation.columns}
    types = {c.name: mysql_type(c, as_text=choices[c.name] == "text") for c in relation.columns}
    types |= _key_types(relation, types, reserved_key_bytes)
    types = _fitting_types(relation, types)
    names = column_names([column.name for column in relation.columns])
    return tuple(
        [
            _map_column(relation, column, name, types[column.name], choices[column.name], flavour)
            for column, name in zip(relation.columns, names, strict=True)
        ]
    )


def _map_column(
    relation: Relation, column: Column, name: str, type_: MysqlType, choice: OnUnrepresentable, flavour: Flavour
) -> ColumnMapping:
    is_key = column.name in relation.key
    if is_key:
        # NULL is no key, and two keys could become one.
        choice = "stop"
    becomes_null = choice == "null" and is_partial(column)
    return ColumnMapping(
        relation.qualified_name,
        column,
        name,
        type_,
        not is_key and (column.nullable or becomes_null),
        flavour.collation if type_.is_text else None,
        is_key,
        choice,
    )


def _check_counts(relation: Relation, flavour: Flavour) -> None:
    if len(relation.columns) > MAX_COLUMNS:
        raise SinkRefused(
            f"{relation.qualified_name} has {len(relation.columns)} columns, and InnoDB's tables at most {MAX_COLUMNS}",
            "select columns with `columns`, or exclude the table",
        )
    if len(relation.key) > flavour.max_key_columns:
        raise SinkRefused(
            f"the key of {relation.qualified_name} has {len(relation.key)} columns, and keys at the destination have "
            f"at most {flavour.max_key_columns}",
            _SMALLER_KEY,
        )


def _key_types(relation: Relation, types: Mapping[str, MysqlType], reserved_bytes: int) -> dict[str, MysqlType]:
    """The types of the key's texts and bytes. They share what the other columns of the key leave."""
    variable = [name for name in relation.key if types[name].is_long or types[name].characters]
    left = MAX_KEY_BYTES - reserved_bytes - sum(types[name].row_bytes for name in relation.key if name not in variable)
    wanted = {name: (types[name].characters or MAX_KEY_BYTES) * CHARACTER_BYTES for name in variable}
    found = {}
    # Those that want little first, so that the others can share what they leave.
    for count, name in enumerate(sorted(variable, key=wanted.__getitem__)):
        share = min(wanted[name], left // (len(variable) - count))
        left -= share
        if share < CHARACTER_BYTES:
            raise SinkRefused(
                f"the key of {relation.qualified_name} does not fit into {MAX_KEY_BYTES} bytes",
                _SMALLER_KEY,
            )
        if types[name].is_binary:
            found[name] = varbinary(share)
        else:
            found[name] = varchar(share // CHARACTER_BYTES, is_limit=share < wanted[name] or types[name].is_long)
    return found


def _fitting_types(relation: Relation, types: Mapping[str, MysqlType]) -> dict[str, MysqlType]:
    """The types, with LONGTEXT in place of the VARCHARs that would make a row too large. Keys stay as they are."""
    is_movable = {name: type_.characters is not None and name not in relation.key for name, type_ in types.items()}
    found = {name: LONGTEXT if is_movable[name] else type_ for name, type_ in types.items()}
    row_bytes = sum(type_.row_bytes for type_ in found.values())
    page_bytes = sum(type_.page_bytes for type_ in found.values())
    # In the order of the columns, so that a new column, which is the last, does not change the others.
    for name, type_ in types.items():
        more_row_bytes = row_bytes + type_.row_bytes - found[name].row_bytes
        more_page_bytes = page_bytes + type_.page_bytes - found[name].page_bytes
        if more_row_bytes <= _MAX_ROW_BYTES and more_page_bytes <= _MAX_PAGE_BYTES:
            row_bytes, page_bytes = more_row_bytes, more_page_bytes
            found[name] = type_
    return found
