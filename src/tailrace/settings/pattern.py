"""Patterns of table names: `public.*`, `shop.order_?`, `public."Mixed.Case"`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tailrace.errors import ConfigError

_PART = re.compile(r'(?:"(?:[^"]|"")+"|[^".\s])+')


@dataclass(frozen=True, slots=True)
class TablePattern:
    """As PostgreSQL reads names: unquoted letters are folded to lower case, quoted ones stand for themselves.

    `*` is any run of characters and `?` any one, unless quoted.
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

    def matches(self, schema: str, table: str) -> bool:
        return bool(self.schema.fullmatch(schema) and self.table.fullmatch(table))


def _expression(part: str) -> re.Pattern[str]:
    wild = {"*": ".*", "?": "."}
    pieces: list[str] = []
    for quoted, plain in re.findall(r'"((?:[^"]|"")*)"|([^"])', part):
        if plain:
            pieces.append(wild.get(plain) or re.escape(plain.lower()))
        else:
            pieces.append(re.escape(quoted.replace('""', '"')))
    return re.compile("".join(pieces), re.DOTALL)
