"""Names of tables and columns in MySQL: at most 64 characters, without regard to case."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

MAX_CHARACTERS: Final = 64
_DIGEST_CHARACTERS: Final = 16
_SHORTENED: Final = re.compile(rf"~[0-9a-f]{{{_DIGEST_CHARACTERS}}}\Z")
_BEYOND: Final = re.compile("[\U00010000-\U0010ffff]")
_ILLEGAL: Final = re.compile(rf"{_BEYOND.pattern}|\s\Z")


def quote(name: str) -> str:
    """Return a name as SQL has it, in backticks."""
    return "`" + name.replace("`", "``") + "`"


def identifier(name: str) -> str:
    """Return the name that a table or column has in MySQL. No two names become the same.

    MySQL has no names with more than 64 characters, with characters beyond the first 65,536, or with white space at
    their end. Such a name gets a digest of all of it in place of what does not fit.
    """
    is_legal = len(name) <= MAX_CHARACTERS and not _ILLEGAL.search(name)
    return name if is_legal and not _SHORTENED.search(name) else _with_digest(name)


def column_names(names: Sequence[str]) -> list[str]:
    """Return the names that a table's columns have in MySQL, where `a` and `A` are one name.

    Of several such names the one in lower case, if there is one, stays as it is. The others get a digest.
    """
    count = Counter(name.casefold() for name in names)
    return [identifier(n) if count[n.casefold()] == 1 or n == n.casefold() else _with_digest(n) for n in names]


def _with_digest(name: str) -> str:
    digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{_BEYOND.sub('_', name)[: MAX_CHARACTERS - _DIGEST_CHARACTERS - 1]}~{digest}"
