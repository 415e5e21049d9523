"""Keys by template: `{schema}:{table}:{key}`, `{database}`, and columns of the row by their names. Pure.

`{key}` stands for the columns of the table's key, with colons between them. Names and values are escaped, so that two
rows never have the same key: `%`, `:`, braces, blanks and control characters become `%` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from tailrace.change import Relation
from tailrace.errors import ConfigError
from tailrace.sinks.messages.routing import DestinationTemplate
from tailrace.sinks.messages.row_image import key_indexes

_KEY: Final = "key"
_SPECIAL: Final = r"[%:{}\x00-\x20\x7f]"
_GLOB: Final = re.compile(r"([*?\[\]\\^])")
ColumnText = Callable[[int], pa.Array]
"""Returns the texts of a column by its index."""


def escape(text: str) -> str:
    """Return a name or value as a part of a key."""
    return re.sub(_SPECIAL, lambda found: f"%{ord(found[0]):02X}", text)


@dataclass(frozen=True)
class KeyTemplate:
    """Makes the keys of rows. `parse` checks the template."""

    names: DestinationTemplate

    @classmethod
    def parse(cls, template: str, database: str = "") -> KeyTemplate:
        names = DestinationTemplate.parse(template, database, escape)
        if any(name == "operation" for _, name in names.parts):
            raise ConfigError(f"{template!r}: the key of a row cannot depend on the operation", "remove {operation}")
        return cls(names)

    @property
    def columns(self) -> list[str]:
        """The placeholders that differ from row to row: `key`, and names of columns."""
        return self.names.columns

    def of_table(self, target: tuple[str, str]) -> str:
        """Return a table's keys, with `*` for what differs between its rows. Two tables must not share it."""
        return self.names.of_table(target)

    def pattern(self, target: tuple[str, str]) -> str:
        """Return the pattern that the server matches keys of a table with."""
        return "*".join(_GLOB.sub(r"\\\1", text) for text in self._texts(target))

    def identifies_rows(self, relation: Relation) -> bool:
        """Whether the keys of a table's rows differ from each other and depend on nothing but the table's key."""
        used = set(self.columns)
        own = set(relation.key)
        return bool(key_indexes(relation)) and (_KEY in used or own <= used) and used - {_KEY} <= own

    def column_indexes(self, relation: Relation) -> list[int]:
        """Return the columns that the keys of a table's rows need.

        Raises a ConfigError if the table has no such column, or no key.
        """
        found: list[int] = []
        names = [column.name for column in relation.columns]
        for name in self.columns:
            indexes = key_indexes(relation) if name == _KEY else [names.index(name)] if name in names else []
            if not indexes:
                raise ConfigError(
                    f"{relation.qualified_name} has no {'key' if name == _KEY else f'column {name}'}, which the"
                    " template of keys needs",
                    "Give the table a primary key, use another template in `key`, or exclude the table.",
                )
            found += indexes
        return found

    def keys(self, relation: Relation, target: tuple[str, str], texts: ColumnText, count: int) -> pa.Array:
        """Return the keys of rows; NULL where a column that the template needs is NULL.

        Args:
            relation: The table.
            target: Its schema and name at the destination.
            texts: Gives the columns of the rows.
            count: The number of rows.
        """
        names = [column.name for column in relation.columns]
        pieces: list[pa.Array | str] = []
        literals = iter(self._texts(target))
        for name in self.columns:
            pieces.append(next(literals))
            own = key_indexes(relation) if name == _KEY else [names.index(name)]
            for number, index in enumerate(own):
                pieces += ([":"] if number else []) + [escape_column(texts(index))]
        pieces.append(next(literals))
        if not self.columns:
            return pa.array([pieces[0]] * count, pa.string())
        return pc.binary_join_element_wise(*pieces, "")

    def keys_of(self, relation: Relation, target: tuple[str, str], key: Sequence[pa.Array]) -> pa.Array:
        """Return the keys of rows, given the columns of the table's key, which are all that the template needs."""
        columns = dict(zip(key_indexes(relation), key, strict=True))
        return self.keys(relation, target, columns.__getitem__, len(key[0]))

    def _texts(self, target: tuple[str, str]) -> Sequence[str]:
        """The texts around the placeholders of rows."""
        fields = dict(zip(("database", "schema", "table"), (self.names.database, *target), strict=True))
        found = [""]
        for text, name in self.names.parts:
            found[-1] += text
            if name in fields:
                found[-1] += escape(fields[name])
            elif name is not None:
                found.append("")
        return found


def escape_column(texts: pa.Array) -> pa.Array:
    """Return a column's values as parts of keys."""
    if not pc.any(pc.match_substring_regex(texts, _SPECIAL)).as_py():
        return texts
    return pa.array([None if text is None else escape(text) for text in texts.to_pylist()], pa.string())
