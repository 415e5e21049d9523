"""PostgreSQL's keywords, and how a name is quoted that might be one."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files


@cache
def keywords() -> tuple[tuple[str, str, bool], ...]:
    """Each word with its category (U: unreserved) and whether it can be a label without AS."""
    lines = files(__package__).joinpath("keywords.txt").read_text("utf-8").splitlines()
    return tuple((word, category, label == "t") for word, category, label in map(str.split, lines))


@cache
def quoted_words() -> frozenset[str]:
    """The keywords that quote_ident quotes: all but the unreserved ones."""
    return frozenset(word for word, category, _ in keywords() if category != "U")


def quote_ident(name: str) -> str:
    is_plain = re.fullmatch("[a-z_][a-z0-9_]*", name) is not None and name not in quoted_words()
    return name if is_plain else '"' + name.replace('"', '""') + '"'
