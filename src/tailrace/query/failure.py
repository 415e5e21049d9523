"""What went wrong with a statement, with the SQLSTATE that PostgreSQL's clients know it by."""

from __future__ import annotations

import re
from typing import Any, Final

from tailrace.errors import TailraceError


class Failure(Exception):
    """Told to the client; the connection goes on."""

    def __init__(self, sqlstate: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint


READ_ONLY: Final = "25006"
FORBIDDEN: Final = "42501"
UNSUPPORTED: Final = "0A000"
CANCELED: Final = "57014"

# By the name of DuckDB's exception; more exact ones by its words come first.
_BY_WORDS: Final = (
    (r"Catalog Error: (Table|View) ", "42P01"),
    (r"Catalog Error: .*[Ff]unction ", "42883"),
    (r"Catalog Error: Type ", "42704"),
    (r"Catalog Error: Schema ", "3F000"),
    (r"Binder Error: No function matches", "42883"),
    (
        r"Binder Error: (Referenced column|Table \".*\" does not have a column|Values list \".*\" does not have)",
        "42703",
    ),
    (r"Binder Error: Referenced table", "42P01"),
    (r"Binder Error: Ambiguous reference", "42702"),
    (r"Binder Error: (column|Column) .* must appear in the GROUP BY", "42803"),
    (r"Binder Error: .*(aggregate|GROUP BY)", "42803"),
    (r"Binder Error: Duplicate alias", "42712"),
    (r"Binder Error: (Cannot compare|Cannot mix|Could not choose)", "42804"),
    (r"Conversion Error: .*(date|timestamp|time) field value out of range", "22008"),
    (r"Conversion Error: .*(timestamp|date|time field)", "22007"),
    (r"Conversion Error: .*(out of range|out of its range|overflow)", "22003"),
    (r"Out of Range Error: .*[Oo]verflow", "22003"),
    (r"Invalid Input Error: division by zero", "22012"),
    (r"Invalid Input Error: requested length too large", "54000"),
    (r"Parser Error: .*not supported", UNSUPPORTED),
    (r"Permission Error", FORBIDDEN),
)
_BY_CLASS: Final = {
    "ParserException": "42601",
    "SyntaxException": "42601",
    "CatalogException": "42704",
    "BinderException": "42P10",
    "ConversionException": "22P02",
    "OutOfRangeException": "22003",
    "TypeMismatchException": "42804",
    "InvalidInputException": "22023",
    "InvalidTypeException": "42804",
    "NotImplementedException": UNSUPPORTED,
    "NotSupportedError": UNSUPPORTED,
    "PermissionException": FORBIDDEN,
    "OutOfMemoryException": "53200",
    "InterruptException": CANCELED,
    "IOException": "58030",
    "HTTPException": "58030",
    "SerializationException": "58030",
    "TransactionException": "25000",
}


def of(error: BaseException) -> Failure:
    """Any error as one to tell the client."""
    if isinstance(error, Failure):
        return error
    if isinstance(error, TailraceError):
        return Failure("58030" if error.retry else "XX000", str(error), error.hint)
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return _of_duckdb(error)
    if isinstance(error, UnicodeDecodeError):
        return Failure("22021", "the text is not UTF-8")
    return Failure("XX000", f"{type(error).__name__}: {error}", "a fault of Tailrace: please report it")


def _of_duckdb(error: Any) -> Failure:
    text = str(error)
    sqlstate = next((state for words, state in _BY_WORDS if re.match(words, text)), None)
    message, _, rest = text.partition("\n\nLINE ")
    message = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", message)
    message, _, hint = message.partition("\n")
    if not hint and (guess := re.search(r"\n(Did you mean .*|Candidate bindings.*)", rest)):
        hint = guess[1]
    return Failure(sqlstate or _BY_CLASS.get(type(error).__name__, "XX000"), message, hint.strip())
