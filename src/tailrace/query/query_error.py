"""Errors reported to clients, and the SQLSTATE of any exception."""

from __future__ import annotations

import re
from decimal import InvalidOperation
from typing import Any, Final

from tailrace.errors import TailraceError


class QueryError(Exception):
    """An error reported to the client. The connection stays open."""

    def __init__(self, sqlstate: str, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.sqlstate = sqlstate
        self.message = message
        self.hint = hint


READ_ONLY: Final = "25006"
FORBIDDEN: Final = "42501"
UNSUPPORTED: Final = "0A000"
CANCELED: Final = "57014"
EXACT: Final = "The query server refuses what it cannot answer exactly as PostgreSQL does."
"""The hint of a refusal."""

_HINTS: Final = {
    UNSUPPORTED: EXACT,
    "22007": "The query server reads dates, times and intervals as PostgreSQL writes them.",
}
"""The hints of errors whose SQLSTATE the translation or a function in Python chose."""
_GUARD: Final = "If WHERE is to exclude this value, test it where it is used: CASE WHEN … THEN … END."
"""The hint of a function that failed for a value: DuckDB may compute it for more rows than PostgreSQL does."""
_TOO_LONG: Final = "a numeric with so many digits is not supported"

# Matched against DuckDB's message first, as it is more specific than the exception class.
_BY_MESSAGE: Final = (
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


def from_exception(error: BaseException) -> QueryError:
    """Convert any exception to an error for the client."""
    if isinstance(error, QueryError):
        return error
    if isinstance(error, TailraceError):
        return QueryError("58030" if error.retry else "XX000", str(error), error.hint)
    if type(error).__module__.split(".")[0] in ("duckdb", "_duckdb"):
        return _from_duckdb(error)
    if isinstance(error, UnicodeDecodeError):
        return QueryError("22021", "the text is not valid UTF-8")
    if isinstance(error, RecursionError):
        return QueryError("54001", "the statement is nested too deeply")
    if isinstance(error, InvalidOperation):
        return QueryError(UNSUPPORTED, _TOO_LONG, EXACT)
    if isinstance(error, MemoryError):
        return QueryError("53200", "out of memory")
    return QueryError("XX000", f"{type(error).__name__}: {error}", "This is a bug in Tailrace. Please report it.")


def _from_duckdb(error: Any) -> QueryError:
    text = str(error)
    if known := re.search(r"\[([0-9A-Z]{5})\] ([^\n]*)", text):
        return QueryError(known[1], known[2], _HINTS.get(known[1], _GUARD if known[1][:2] == "22" else ""))
    if "UDF: RecursionError" in text:
        return QueryError("54001", "the value is nested too deeply")
    if "UDF: InvalidOperation" in text:
        return QueryError(UNSUPPORTED, _TOO_LONG, EXACT)
    if "non-inner join on subquery" in text:
        return QueryError(UNSUPPORTED, "a subquery in the condition of an outer join is not supported", EXACT)
    if re.search(r"(VAR|STDDEV)_?(SAMP|POP) is out of range", text):
        return QueryError(UNSUPPORTED, "the variance of numbers as large as these is not supported", EXACT)
    sqlstate = next((state for pattern, state in _BY_MESSAGE if re.match(pattern, text)), None)
    message, _, rest = text.partition("\n\nLINE ")
    message = re.sub(r"^[A-Z][A-Za-z ]+ Error: ", "", message)
    message, _, hint = message.partition("\n")
    if not hint and (guess := re.search(r"\n(Did you mean .*|Candidate bindings.*)", rest)):
        hint = guess[1]
    sqlstate = sqlstate or _BY_CLASS.get(type(error).__name__, "XX000")
    if sqlstate == "22003" and "DECIMAL" in message:
        hint = "Without a fixed scale, numerics may have any number of digits: (x::text)::numeric."
    elif not hint and sqlstate[:2] in ("0A", "22", "42", "XX") and sqlstate != "22012":
        hint = EXACT
    return QueryError(sqlstate, message, hint.strip())
