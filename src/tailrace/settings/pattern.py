"""Patterns of table names: `public.*`, `shop.order_?`, `public."Mixed.Case"`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.errors import ConfigError

_PART = re.compile(r'(?:"(?:[^"]|"")+"|[^".\s])+')

_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")


@dataclass(frozen=True, slots=True)
class TablePattern:
    """A pattern that reads names as PostgreSQL does: unquoted letters are lower case, quoted text is literal.

    Unquoted `*` matches any run of characters, and `?` any one character.
    """

    text: str
    schema: re.Pattern[str]
    table: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> TablePattern:
        parts = [match.group() for match in _PART.finditer(text)]
        if len(parts) != 2 or ".".join(parts) != text:
            hint = 'write schema.table, such as public.* or public."Orders"'
            raise ConfigError(f"{text!r} is not a pattern of table names", hint)
        return cls(text, _expression(parts[0]), _expression(parts[1]))

    @property
    def schema_name(self) -> str | None:
        """The schema, if the pattern matches only one."""
        part = next(_PART.finditer(self.text)).group()
        return None if re.search(r"[*?]", re.sub(r'"(?:[^"]|"")*"', "", part)) else _unquote(part)

    def matches(self, schema: str, table: str) -> bool:
        return bool(self.schema.fullmatch(schema) and self.table.fullmatch(table))


@dataclass(frozen=True, slots=True)
class ColumnPattern:
    """`public.customers.email`, with each part as in a `TablePattern`."""

    table: TablePattern
    column: re.Pattern[str]

    @classmethod
    def parse(cls, text: str) -> ColumnPattern:
        parts = [match.group() for match in _PART.finditer(text)]
        if len(parts) != 3 or ".".join(parts) != text:
            raise ConfigError(
                f"{text!r} is not a pattern of columns", "write schema.table.column, such as public.*.email"
            )
        return cls(TablePattern.parse(".".join(parts[:2])), _expression(parts[2]))

    def matches(self, schema: str, table: str, column: str) -> bool:
        return self.table.matches(schema, table) and self.column.fullmatch(column) is not None


@dataclass(frozen=True, slots=True)
class ColumnList:
    """`id, name, "Total, net"` selects these columns; `-email, -phone_*` selects all other columns."""

    names: tuple[re.Pattern[str], ...]
    is_exclusion: bool

    @classmethod
    def parse(cls, text: str) -> ColumnList:
        entries = [entry.strip() for entry in re.findall(r'(?:"(?:[^"]|"")*"|[^",])+', text)]
        names = [entry.removeprefix("-").strip() for entry in entries]
        excluded = {entry.startswith("-") for entry in entries}
        if not all(re.fullmatch(r'(?:"(?:[^"]|"")+"|[^"\s])+', name) for name in names) or len(excluded) != 1:
            raise ConfigError(
                f"{text!r} is not a list of columns",
                "write the columns to deliver (id, name) or the columns to exclude (-email, -phone)",
            )
        return cls(tuple([_expression(name) for name in names]), excluded.pop())

    def has(self, column: str) -> bool:
        return any(name.fullmatch(column) for name in self.names) != self.is_exclusion


def split_name(text: str) -> tuple[str, str]:
    """Schema and table of a name as PostgreSQL reads it: `orders` is `public.orders`, `shop."Orders"` has a capital."""
    parts = [match.group() for match in _PART.finditer(text)]
    if not 1 <= len(parts) <= 2 or ".".join(parts) != text:
        raise ConfigError(f"{text!r} is not the name of a table", 'write schema.table, such as public."Orders"')
    names = [_unquote(part) for part in parts]
    return (names[0], names[1]) if len(names) == 2 else ("public", names[0])


def quote_name(schema: str, table: str) -> str:
    """The name that `split_name` and `TablePattern` read as exactly this table."""
    return ".".join(part if _PLAIN.fullmatch(part) else '"' + part.replace('"', '""') + '"' for part in (schema, table))


def _unquote(part: str) -> str:
    found = re.findall(r'"((?:[^"]|"")*)"|([^"])', part)
    return "".join(plain.lower() or quoted.replace('""', '"') for quoted, plain in found)


def _expression(part: str) -> re.Pattern[str]:
    """An expression that takes linear time for each `*`, whoever wrote the pattern: nothing is tried at two places."""
    runs, literal = [], ""
    for quoted, plain in re.findall(r'"((?:[^"]|"")*)"|([^"])', part):
        if plain == "*":
            runs.append(literal)
            literal = ""
        elif plain:
            literal += "." if plain == "?" else re.escape(plain.lower())
        else:
            literal += re.escape(quoted.replace('""', '"'))
    first, *between = [*runs, literal]
    if not between:
        return re.compile(first, re.DOTALL)
    # The first place where the text between two stars fits leaves most to what follows.
    found = "".join(f"(?>.*?{text})" for text in between[:-1] if text)
    return re.compile(f"{first}{found}.*{between[-1]}", re.DOTALL)
