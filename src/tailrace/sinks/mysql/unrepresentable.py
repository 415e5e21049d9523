"""The setting `on_unrepresentable`: what happens to values that MySQL's types cannot hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from tailrace.change import Column, Relation
from tailrace.errors import ConfigError
from tailrace.settings.parser import did_you_mean
from tailrace.settings.pattern import ColumnPattern
from tailrace.types import SQL_NAMES, base

OnUnrepresentable = Literal["stop", "null", "clamp", "text"]
"""`stop` refuses the change. `null` writes NULL, `clamp` the nearest value that the column can hold. `text` makes the
column text, so that it holds all values as PostgreSQL prints them."""

CHOICES: Final[tuple[str, ...]] = get_args(OnUnrepresentable)
PARTIAL_TYPES: Final = ("numeric", "float4", "float8", "date", "timestamp", "timestamptz")
"""The types that have values which MySQL's types cannot hold."""
_DEFAULT: Final = "default"
_TYPE_NAMES: Final = {**{name: name for name in PARTIAL_TYPES}, **{SQL_NAMES.get(n, n): n for n in PARTIAL_TYPES}}


@dataclass(frozen=True)
class UnrepresentablePolicy:
    """What to do with such values: by column, else by type, else by default."""

    default: OnUnrepresentable = "stop"
    by_type: Mapping[str, OnUnrepresentable] | None = None
    by_column: tuple[tuple[ColumnPattern, OnUnrepresentable], ...] = ()
    """The first pattern that matches counts."""

    @classmethod
    def parse(cls, setting: str | Mapping[str, str]) -> UnrepresentablePolicy:
        """Parse the setting.

        Args:
            setting: One word, or a table with entries for `default`, for types (`numeric`) and for columns
                (`public.orders.amount`, `public.*.price`).
        """
        entries = {_DEFAULT: setting} if isinstance(setting, str) else setting
        by_type: dict[str, OnUnrepresentable] = {}
        by_column = []
        for name, word in entries.items():
            choice = _choice(name, word)
            if "." in name:
                by_column.append((ColumnPattern.parse(name), choice))
            elif name in _TYPE_NAMES:
                by_type[_TYPE_NAMES[name]] = choice
            elif name != _DEFAULT:
                raise ConfigError(
                    f"on_unrepresentable: {name!r} is not a type" + did_you_mean(name, tuple(_TYPE_NAMES)),
                    "write default, a type, or schema.table.column",
                )
        return cls(_choice(_DEFAULT, entries.get(_DEFAULT, "stop")), by_type, tuple(by_column))

    def of(self, relation: Relation, column: Column) -> OnUnrepresentable:
        """What to do with a column's values."""
        for pattern, choice in self.by_column:
            if pattern.matches(relation.schema, relation.name, column.name):
                return choice
        type_, _ = base(column.type, column.modifier)
        if type_.schema == "pg_catalog" and self.by_type is not None:
            return self.by_type.get(type_.name, self.default)
        return self.default


def _choice(name: str, word: str) -> OnUnrepresentable:
    for choice in get_args(OnUnrepresentable):
        if word == choice:
            return choice  # type: ignore[no-any-return]
    raise ConfigError(f"on_unrepresentable: {name} is {word!r}" + did_you_mean(word, CHOICES), "use one of these")
